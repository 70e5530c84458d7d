"""Tables for jobs, trials, reports, eras, power profiles and secrets.

It makes what the models say. Before the first release, replace it by what `flask db migrate` writes
for an empty database: from then on, the models change in later revisions.
"""

from alembic import op
from sqlalchemy.schema import CreateIndex, CreateTable, DropTable

from zeus_service.db.tables import db

revision = "0001"
down_revision = None


def upgrade() -> None:
    for table in db.metadata.sorted_tables:
        op.execute(CreateTable(table))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            op.execute(CreateIndex(index))


def downgrade() -> None:
    for table in reversed(db.metadata.sorted_tables):
        op.execute(DropTable(table))
