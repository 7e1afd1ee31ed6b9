"""Entry point of Alembic. `app/store/schema.py` passes a connection with an open transaction and the lock."""

from alembic import context
from alembic.util import CommandError

from app.store.tables import metadata

if (connection := context.config.attributes.get("connection")) is None:
    raise CommandError("`steno migrate` migrates the database of the settings, and `steno doctor` shows its revision.")
context.configure(
    connection=connection,
    target_metadata=metadata,
    render_as_batch=True,  # SQLite cannot alter a column in place
)
with context.begin_transaction():
    context.run_migrations()
