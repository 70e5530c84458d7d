"""Tables for jobs, trials, reports, eras, power profiles and secrets."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
# Compared and ordered by its bytes.
IDENTIFIER = sa.String(300).with_variant(sa.VARCHAR(300, collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("key", sa.Integer(), nullable=False),
        sa.Column("job_id", IDENTIFIER, nullable=True),
        sa.Column("trials", sa.Integer(), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("keeps_hardware", sa.Boolean(), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("stage", sa.String(length=255), nullable=False),
        sa.Column("best_batch_size", sa.Integer(), nullable=True),
        sa.Column("exploits", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("completed_baselines", sa.Integer(), nullable=False),
        sa.Column("saved_energy_j", sa.Double(), nullable=True),
        sa.Column("saved_energy_j_error", sa.Double(), nullable=True),
        sa.Column("saved_time_s", sa.Double(), nullable=True),
        sa.Column("saved_time_s_error", sa.Double(), nullable=True),
        sa.Column("saved_cost", sa.Double(), nullable=True),
        sa.Column("saved_cost_error", sa.Double(), nullable=True),
        sa.Column("saved_gpu_time_s", sa.Double(), nullable=True),
        sa.Column("saved_gpu_time_s_error", sa.Double(), nullable=True),
        sa.Column("spent_energy_j", sa.Double(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.Column("state", sa.JSON(), nullable=False),
        sa.Column("ledger", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key", name="pk_jobs"),
        sa.UniqueConstraint("job_id", name="uq_jobs_job_id"),
        postgresql_with={"fillfactor": 50},
        **MYSQL,
    )
    op.create_table(
        "secrets",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("value", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_secrets"),
        **MYSQL,
    )
    op.create_table(
        "eras",
        sa.Column("job_key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("era", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("recurrences", sa.Integer(), nullable=False),
        sa.Column("spent_energy_j", sa.Double(), nullable=False),
        sa.Column("spent_time_s", sa.Double(), nullable=False),
        sa.Column("spent_cost", sa.Double(), nullable=False),
        sa.Column("expected_energy_j", sa.Double(), nullable=True),
        sa.Column("expected_energy_j_error", sa.Double(), nullable=True),
        sa.Column("expected_time_s", sa.Double(), nullable=True),
        sa.Column("expected_time_s_error", sa.Double(), nullable=True),
        sa.Column("expected_cost", sa.Double(), nullable=True),
        sa.Column("expected_cost_error", sa.Double(), nullable=True),
        sa.Column("expected_gpu_time_s", sa.Double(), nullable=True),
        sa.Column("expected_gpu_time_s_error", sa.Double(), nullable=True),
        sa.Column("carried_from", sa.Integer(), nullable=True),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_eras_job_key_jobs"),
        sa.PrimaryKeyConstraint("job_key", "era", name="pk_eras"),
        **MYSQL,
    )
    op.create_table(
        "power_profiles",
        sa.Column("job_key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("batch_size", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("device_model", IDENTIFIER, nullable=False),
        sa.Column("num_devices", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_power_profiles_job_key_jobs"),
        sa.PrimaryKeyConstraint(
            *("job_key", "batch_size", "device_model", "num_devices"), name="pk_power_profiles"
        ),
        **MYSQL,
    )
    op.create_table(
        "trials",
        sa.Column("job_key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("trial_number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.String(length=32), nullable=False),
        sa.Column("idempotency_key", IDENTIFIER, nullable=True),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("device_model", sa.String(length=255), nullable=False),
        sa.Column("num_devices", sa.Integer(), nullable=False),
        sa.Column("max_power_w", sa.Double(), nullable=False),
        sa.Column("meter", sa.String(length=255), nullable=False),
        sa.Column("estimated", sa.Boolean(), nullable=False),
        sa.Column("why", sa.String(length=32), nullable=False),
        sa.Column("start_reason", sa.String(length=1000), nullable=False),
        sa.Column("start_cost_bound", sa.Double(), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("counted", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=1000), nullable=False),
        sa.Column("started_seq", sa.Integer(), nullable=False),
        sa.Column("ended_seq", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=False),
        sa.Column("reports", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("time_s", sa.Double(), nullable=False),
        sa.Column("energy_j", sa.Double(), nullable=False),
        sa.Column("metric", sa.Double(), nullable=True),
        sa.Column("cost", sa.Double(), nullable=False),
        sa.Column("power_limit_w", sa.Double(), nullable=True),
        sa.Column("default_power_limit_w", sa.Double(), nullable=True),
        sa.Column("host_load", sa.Double(), nullable=True),
        sa.Column("era", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["job_key"], ["jobs.key"], name="fk_trials_job_key_jobs"),
        sa.PrimaryKeyConstraint("job_key", "trial_number", name="pk_trials"),
        **MYSQL,
    )
    op.create_index("ix_trials_idempotency_key", "trials", ["idempotency_key"], unique=False)
    op.create_index(
        "ix_trials_outcome_job_key",
        "trials",
        ["outcome", "job_key"],
        unique=False,
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.create_table(
        "reports",
        sa.Column("job_key", sa.Integer(), autoincrement=False, nullable=False),
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
        sa.Column("power_limit_w", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_key", "trial_number"],
            ["trials.job_key", "trials.trial_number"],
            name="fk_reports_job_key_trial_number_trials",
        ),
        sa.PrimaryKeyConstraint("job_key", "trial_number", "sequence", name="pk_reports"),
        **MYSQL,
    )


def downgrade() -> None:
    op.drop_table("reports")
    op.drop_index(
        "ix_trials_outcome_job_key",
        table_name="trials",
        postgresql_where=sa.text("outcome IS NULL"),
    )
    op.drop_index("ix_trials_idempotency_key", table_name="trials")
    op.drop_table("trials")
    op.drop_table("power_profiles")
    op.drop_table("eras")
    op.drop_table("secrets")
    op.drop_table("jobs")
