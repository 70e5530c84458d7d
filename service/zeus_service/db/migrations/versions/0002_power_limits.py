"""The power limits at which runs have trained, and the GPUs' default ones."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

COLUMNS = (
    ("trials", "power_limit_w"),
    ("trials", "default_power_limit_w"),
    ("reports", "power_limit_w"),
)


def upgrade() -> None:
    for table, column in COLUMNS:
        op.add_column(table, sa.Column(column, sa.Double(), nullable=True))


def downgrade() -> None:
    for table, column in COLUMNS:
        op.drop_column(table, column)
