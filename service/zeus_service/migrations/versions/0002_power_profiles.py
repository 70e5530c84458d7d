"""A table for the power profiles of jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def identifier() -> sa.String:
    """Compared and ordered by its bytes."""
    on_postgresql = postgresql.VARCHAR(255, collation="C")
    return sa.String(length=255).with_variant(on_postgresql, "postgresql")


def upgrade() -> None:
    op.create_table(
        "power_profiles",
        sa.Column("job_id", identifier(), nullable=False),
        sa.Column("batch_size", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device_model", identifier(), nullable=False),
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
