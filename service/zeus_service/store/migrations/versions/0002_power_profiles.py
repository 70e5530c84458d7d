"""A table for the power profiles of jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"

# Compared and ordered by its bytes.
IDENTIFIER = sa.String(300).with_variant(postgresql.VARCHAR(300, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "power_profiles",
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("batch_size", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device_model", IDENTIFIER, nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.job_id"],
            name=op.f("fk_power_profiles_job_id_jobs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "job_id", "batch_size", "device_model", name=op.f("pk_power_profiles")
        ),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


def downgrade() -> None:
    op.drop_table("power_profiles")
