"""Tables for jobs, trials, reports, events, power profiles and savings."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
# Compared and ordered by its bytes.
IDENTIFIER = sa.String(300).with_variant(postgresql.VARCHAR(300, collation="C"), "postgresql")


def of_job(table: str) -> sa.ForeignKeyConstraint:
    name = f"fk_{table}_job_id_jobs"
    return sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=name, ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("cost_bound", sa.Double(), nullable=True),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("events", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("ledger", sa.JSON(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("saved_energy_j", sa.Double(), nullable=True),
        sa.Column("saved_energy_j_error", sa.Double(), nullable=True),
        sa.Column("saved_time_s", sa.Double(), nullable=True),
        sa.Column("saved_time_s_error", sa.Double(), nullable=True),
        sa.Column("saved_cost", sa.Double(), nullable=True),
        sa.Column("saved_cost_error", sa.Double(), nullable=True),
        sa.Column("stage", sa.String(length=255), nullable=False),
        sa.Column("best_batch_size", sa.Integer(), nullable=True),
        sa.Column("exploits", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", name="pk_jobs"),
        postgresql_with={"fillfactor": 50},
        **MYSQL,
    )
    op.create_table(
        "events",
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("why", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("cost", sa.Double(), nullable=False),
        sa.Column("happened_at", sa.Double(), nullable=False),
        of_job("events"),
        sa.PrimaryKeyConstraint("job_id", "sequence", name="pk_events"),
        **MYSQL,
    )
    op.create_table(
        "trials",
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("trial_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.String(length=32), nullable=False),
        sa.Column("idempotency_key", IDENTIFIER, nullable=True),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("why", sa.String(length=32), nullable=False),
        sa.Column("start_reason", sa.String(length=255), nullable=False),
        sa.Column("start_cost_bound", sa.Double(), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.String(length=1000), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("energy_j", sa.Double(), nullable=False),
        sa.Column("metric", sa.Double(), nullable=True),
        sa.Column("cost", sa.Double(), nullable=False),
        of_job("trials"),
        sa.PrimaryKeyConstraint("job_id", "trial_number", name="pk_trials"),
        sa.UniqueConstraint("idempotency_key", name="uq_trials_idempotency_key"),
        **MYSQL,
    )
    op.create_index(
        "ix_trials_outcome_job_id",
        "trials",
        ["outcome", "job_id"],
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_table(
        "reports",
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("trial_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("energy_j", sa.Double(), nullable=False),
        sa.Column("metric", sa.Double(), nullable=False),
        sa.Column("decision", sa.String(length=32), nullable=False),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("cost", sa.Double(), nullable=False),
        sa.Column("cost_bound", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(length=1000), nullable=False),
        sa.Column("reported_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "trial_number"],
            ["trials.job_id", "trials.trial_number"],
            name="fk_reports_job_id_trial_number_trials",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "trial_number", "sequence", name="pk_reports"),
        **MYSQL,
    )
    op.create_table(
        "checkpoints",
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        of_job("checkpoints"),
        sa.PrimaryKeyConstraint("job_id", name="pk_checkpoints"),
        **MYSQL,
    )
    op.create_table(
        "power_profiles",
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("batch_size", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device_model", IDENTIFIER, nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        of_job("power_profiles"),
        sa.PrimaryKeyConstraint("job_id", "batch_size", "device_model", name="pk_power_profiles"),
        **MYSQL,
    )
    op.create_table(
        "saved_on_days",
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", IDENTIFIER, nullable=False),
        sa.Column("recurrences", sa.Integer(), nullable=False),
        sa.Column("energy_j", sa.Double(), nullable=False),
        sa.Column("energy_j_error", sa.Double(), nullable=False),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("time_s_error", sa.Double(), nullable=False),
        sa.Column("cost", sa.Double(), nullable=False),
        sa.Column("cost_error", sa.Double(), nullable=False),
        of_job("saved_on_days"),
        sa.PrimaryKeyConstraint("day", "job_id", name="pk_saved_on_days"),
        **MYSQL,
    )
    op.create_index("ix_saved_on_days_job_id", "saved_on_days", ["job_id"])
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
        **MYSQL,
    )


def downgrade() -> None:
    op.drop_table("secrets")
    op.drop_table("saved_on_days")
    for table in ("power_profiles", "checkpoints", "reports", "trials", "events", "jobs"):
        op.drop_table(table)
