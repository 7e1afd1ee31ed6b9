"""Migrations: rows survive, the tables end as the code expects, and many processes may start at once."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    JSON,
    Boolean,
    Connection,
    Engine,
    Float,
    LargeBinary,
    MetaData,
    Table,
    event,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.sql.sqltypes import Integer
from structlog.testing import capture_logs

from app.store import MigrationFailed, SchemaTooNew, migrations, schema
from app.store.chunks import chunks_in
from app.store.conversation_rows import find_conversation
from app.store.database import Database
from app.store.tables import metadata
from tests.databases import database_on
from tests.integration.examples import SERIES, TENANT, OpenStore, chain, chunk, put, seen, take

ROOT = Path(__file__).parents[2]
REVISIONS = [each.revision for each in reversed(list(ScriptDirectory(str(schema.scripts())).walk_revisions()))]
"""As alembic finds them, by what each file says of the one before."""
OLD_AND_NEW = [*(pytest.param(each, marks=pytest.mark.sampled(0.2)) for each in REVISIONS[:-3]), *REVISIONS[-3:]]
"""Old migrations do not change any more: a sample of them is played."""


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """Here without tables."""
    return empty_postgres_url


def sample(column: Any, number: int) -> Any:
    """A value that fits the column, whatever later revisions make of it."""
    match column.type:
        case _ if column.name == "deactivated_at":
            return None  # A summary that was not used any more is deleted.
        case Integer():
            return 1_700_000_000_000 + number
        case LargeBinary():
            return bytes([number]) * 16
        case JSON():
            return ["a", "b"]
        case Boolean():
            return True
        case Float():
            return number + 0.5
        case TSVECTOR():
            return f"'{column.name}{number}'"
    return "json" if "json" in str(column.type).lower() else f"{column.name} {number}"


def is_ours(name: str, _: object = None) -> bool:
    """Not one that SQLite keeps for its full text indexes."""
    return not name.startswith(("summary_search", "message_search"))


def fill(connection: Connection) -> dict[str, list[dict[str, Any]]]:
    """Two rows in every table there is, found by looking, not by knowing."""
    found = MetaData()
    found.reflect(connection, only=is_ours)
    rows = {}
    for table in found.sorted_tables:
        if table.name == "alembic_version":
            continue
        rows[table.name] = [{column.name: sample(column, number) for column in table.columns} for number in (1, 2)]
        connection.execute(insert(table), rows[table.name])
    return rows


def read(connection: Connection, name: str) -> list[dict[str, Any]]:
    table = Table(name, MetaData(), autoload_with=connection)
    return [dict(row._mapping) for row in connection.execute(select(table).order_by(*table.primary_key))]


@pytest.mark.parametrize("revision", OLD_AND_NEW)
async def test_rows_of_the_previous_revision_survive(shared_url: str, revision: str) -> None:
    """In the tables and columns that this release still has."""
    database = Database(shared_url)
    number = REVISIONS.index(revision)
    if number:
        await migrations.upgrade(database, REVISIONS[number - 1])
    async with database.writing() as connection:
        before = await connection.run_sync(fill)
    assert bool(before) == bool(number)
    await migrations.upgrade(database)
    async with database.reading() as connection:
        for name in before.keys() & metadata.tables:
            kept = before[name][0].keys() & metadata.tables[name].columns.keys()
            rows = [{key: row[key] for key in kept} for row in before[name]]
            after = await connection.run_sync(read, name)
            assert [{key: row[key] for key in kept} for row in after] == rows
    await database.close()


def differences(connection: Connection) -> list[Any]:
    """What alembic would change, to make the tables those of the code."""

    def is_for_this_database(item: Any, name: str, kind: str, *_: object) -> bool:
        other = kind == "index" and item._ddl_if is not None and item._ddl_if.dialect != connection.dialect.name
        return not other and (kind != "table" or is_ours(name))

    options = {"compare_type": True, "include_object": is_for_this_database}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


PARTITIONED = """
    ALTER TABLE usage_records RENAME TO usage_records_before;
    ALTER INDEX pk_usage_records RENAME TO pk_usage_records_before;
    ALTER INDEX ix_usage_records_tenant_created_at RENAME TO ix_usage_records_tenant_created_at_before;
    CREATE TABLE usage_records (LIKE usage_records_before INCLUDING DEFAULTS) PARTITION BY RANGE (id);
    ALTER TABLE usage_records ADD CONSTRAINT pk_usage_records PRIMARY KEY (tenant, id);
    CREATE INDEX ix_usage_records_tenant_created_at ON usage_records (tenant, created_at);
    ALTER TABLE usage_records ATTACH PARTITION usage_records_before FOR VALUES FROM (MINVALUE) TO ('use_2');
    CREATE TABLE usage_records_20260101 PARTITION OF usage_records FOR VALUES FROM ('use_2') TO ('use_3');
    CREATE TABLE usage_records_rest PARTITION OF usage_records DEFAULT;
    GRANT SELECT ON usage_records TO PUBLIC
"""
"""As the release of revision 0029 did while it served."""


async def test_usage_records_in_partitions_become_one_table(postgres_url: str) -> None:
    """With every record, the indexes of a new database, and the rights that others have."""
    database = Database(postgres_url)
    await migrations.upgrade(database, "0029")
    async with database.writing() as connection:
        rows = (await connection.run_sync(fill))["usage_records"]
        for statement in PARTITIONED.split(";"):
            await connection.execute(text(statement))
        table = await connection.run_sync(lambda sync: Table("usage_records", MetaData(), autoload_with=sync))
        for number in range(5):
            await connection.execute(insert(table), [{**row, "id": f"use_{number}_{row['id']}"} for row in rows])
    await migrations.upgrade(database)
    async with database.reading() as connection:
        found = await connection.run_sync(read, "usage_records")
        assert len(found) == 6 * len(rows)
        tables = (await connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))).all()
        assert [name for name in tables if name.startswith("usage")] == ["usage_records"]
        granted = "SELECT privilege_type FROM information_schema.table_privileges WHERE grantee = 'PUBLIC'"
        assert await connection.scalar(text(f"{granted} AND table_name = 'usage_records'")) == "SELECT"
        assert await connection.run_sync(differences) == []
    await database.close()


@pytest.mark.parametrize("revision", OLD_AND_NEW)
async def test_indexes_are_dropped_last(postgres_url: str, revision: str) -> None:
    """From the first drop to the end of the migration the release before it cannot read the table."""
    database, statements = Database(postgres_url), []
    number = REVISIONS.index(revision)
    if number:
        await migrations.upgrade(database, REVISIONS[number - 1])

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement.split()[:2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await migrations.upgrade(database, revision)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    changes = [each for each in statements if each[0] in {"CREATE", "ALTER", "DROP"}]
    assert changes == sorted(changes, key=lambda change: change == ["DROP", "INDEX"])
    await database.close()


async def test_migration_waits_for_that_of_another_process(open_store: OpenStore, postgres_url: str) -> None:
    """However long it takes: no limit of a request applies."""
    store = open_store(postgres_url)
    async with store.database.writing() as connection:
        await connection.execute(select(func.pg_advisory_xact_lock(*schema._LOCK)))
        migrating = asyncio.ensure_future(store.migrate())
        await asyncio.sleep(1)
        assert not migrating.done()
    assert await migrating == (None, REVISIONS[-1])


async def test_migrated_tables_are_those_of_the_code(database_url: str) -> None:
    """Alembic would find nothing to do."""
    database = Database(database_url)
    await migrations.upgrade(database)

    async with database.reading() as connection:
        assert await connection.run_sync(differences) == []
    await database.close()


async def test_an_empty_database_is_made_as_all_migrations_would_leave_it(postgres_server: str, tmp_path: Path) -> None:
    """As the database itself describes it, but for the order of columns that were added later."""
    with database_on(postgres_server) as made, database_on(postgres_server) as migrated:
        await assert_alike(made, migrated, ON_POSTGRESQL)
    await assert_alike(f"sqlite:///{tmp_path}/made.db", f"sqlite:///{tmp_path}/migrated.db", ON_SQLITE)


ON_POSTGRESQL = (
    """SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage, a.attidentity,
              pg_get_expr(d.adbin, d.adrelid)
       FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid
            AND d.adnum = a.attnum
       WHERE c.relnamespace = current_schema()::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
             AND c.relkind IN ('r', 'p', 'v', 'S')""",
    """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
       WHERE connamespace = current_schema()::regnamespace AND contype <> 'n'""",
    "SELECT indexdef FROM pg_indexes WHERE schemaname = current_schema()",
    "SELECT version_num FROM alembic_version",
)
ON_SQLITE = (
    """SELECT m.name, c.name, c.type, c."notnull", c.dflt_value, c.pk
       FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'""",
    """SELECT m.name, k.id, k.seq, k."table", k."from", k."to", k.on_delete
       FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) k WHERE m.type = 'table'""",
    """SELECT m.name, i."unique", i.origin, i.partial, group_concat(c.name)
       FROM sqlite_master m JOIN pragma_index_list(m.name) i JOIN pragma_index_info(i.name) c
       WHERE m.type = 'table' GROUP BY m.name, i.name""",
    """SELECT name, sql FROM sqlite_master
       WHERE type IN ('index', 'trigger', 'view') OR sql LIKE 'CREATE VIRTUAL%'""",
    "SELECT version_num FROM alembic_version",
)


async def assert_alike(made_url: str, migrated_url: str, queries: Sequence[str]) -> None:
    made, migrated = Database(made_url), Database(migrated_url)
    assert await schema.make(made)
    await migrations.upgrade(migrated)
    for query in queries:
        found = []
        for database in (made, migrated):
            assert not await schema.make(database)
            async with database.reading() as connection:
                rows = await connection.execute(text(query.replace(":", r"\:")))
                found.append(sorted(" ".join(str(tuple(row)).replace(r"\n", " ").split()) for row in rows))
        assert found[0] == found[1]
    await made.close()
    await migrated.close()


async def test_migrating_tells_from_where_to_where(open_store: OpenStore, database_url: str) -> None:
    """The second time there is nothing to do."""
    store = open_store(database_url)
    assert await store.migrate() == (None, REVISIONS[-1])
    assert await store.migrate() == (REVISIONS[-1], REVISIONS[-1])


async def test_database_of_a_later_release_is_refused(open_store: OpenStore, shared_url: str) -> None:
    """Its tables may mean something else by now; the message names both revisions."""
    store = open_store(shared_url)
    await store.migrate()
    async with store.database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaTooNew, match=f"9999.*{REVISIONS[-1]}"):
        await store.start()
    assert store.state == "degraded"


async def test_a_running_release_goes_on_while_a_newer_one_migrates(open_store: OpenStore, shared_url: str) -> None:
    """A rolling upgrade: migrations only add, and statements that were prepared before must not trip over that."""
    running = open_store(shared_url)
    await running.start()
    await put(running, chunk(0, 4))
    lease = await take(running, 4, 8)
    assert len(await running.request(chunks_in, TENANT, SERIES, chain(9))) == 1
    newer = Database(shared_url)
    async with newer.writing() as connection:
        for table in metadata.sorted_tables:
            await connection.execute(text(f'ALTER TABLE "{table.name}" ADD COLUMN newer TEXT'))
        await connection.execute(text("CREATE TABLE newer (id TEXT PRIMARY KEY)"))
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await newer.close()
    assert len(await running.request(chunks_in, TENANT, SERIES, chain(9))) == 1
    assert await running.leases.renew(lease)
    assert await running.leases.commit(lease, [chunk(4, 8)])
    await running.leases.release(lease)
    assert len(await running.request(chunks_in, TENANT, SERIES, chain(9))) == 2
    running.writes.record(seen())
    await running.flush()
    assert await running.rest(find_conversation, TENANT, "c1") is not None
    assert running.state == "ok"


async def test_migration_that_fails_is_named_and_leaves_nothing_behind(open_store: OpenStore, shared_url: str) -> None:
    """`leases` is in the way of the second revision, so the first is undone too."""
    store = open_store(shared_url)
    async with store.database.writing() as connection:
        await connection.execute(text("CREATE TABLE leases (mine INTEGER)"))
    with pytest.raises(MigrationFailed, match=f"None to {REVISIONS[-1]}.*leases"):
        await store.start()
    async with store.database.reading() as connection:
        found = MetaData()
        await connection.run_sync(found.reflect)
        assert set(found.tables) == {"leases"}


MIGRATE = """
import asyncio, sys
from app.store import Store
from app.store.chunks import chunks_in

async def main():
    store = Store(sys.argv[1])
    print(await store.migrate())
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
async def test_processes_that_start_at_once_migrate_once(shared_url: str) -> None:
    """One of four does it, the others wait and find it done."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, shared_url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(4)
    ]
    said = [await process.communicate() for process in processes]
    head = REVISIONS[-1]
    assert sorted(out.decode().strip() for out, _ in said) == sorted(
        [f"(None, '{head}')"] + [f"('{head}', '{head}')"] * 3
    )


async def test_sqlite_waits_for_the_process_that_migrates(open_store: OpenStore, tmp_path: Path) -> None:
    """Even connecting waits: switching to WAL fails at once if somebody else is at it."""
    with (tmp_path / "steno.db.migrate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        migrating = asyncio.ensure_future(open_store(f"sqlite:///{tmp_path}/steno.db").migrate())
        await asyncio.sleep(0.3)
        assert not migrating.done()
        assert not (tmp_path / "steno.db").exists()
    assert await migrating == (None, REVISIONS[-1])


def alembic(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command as a developer types it in the checkout."""
    return subprocess.run(  # noqa: S603 - our own dependency
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# The files of a SQLite database


def mode_of(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


async def test_database_and_the_folder_made_for_it_are_for_their_user_alone(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """So are the files that SQLite puts beside it."""
    store = open_store(f"sqlite:///{tmp_path}/one/two/steno.db")
    await store.start()
    await store.flush()
    files = {path.name: mode_of(path) for path in (tmp_path / "one" / "two").iterdir()}
    assert files.keys() >= {"steno.db", "steno.db-wal", "steno.db-shm"}
    assert set(files.values()) == {"600"}
    assert [mode_of(tmp_path / "one"), mode_of(tmp_path / "one" / "two")] == ["700", "700"]


async def test_database_of_an_earlier_release_is_closed_to_others(tmp_path: Path) -> None:
    """The folder was there: somebody else's files may be in it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o755)
    path = folder / "steno.db"
    database = Database(f"sqlite:///{path}")
    await migrations.upgrade(database, REVISIONS[0])
    path.chmod(0o644)
    with capture_logs() as log:
        await migrations.upgrade(database)
    assert (mode_of(path), mode_of(folder)) == ("600", "755")
    assert log == [
        {"event": "database file closed to others", "log_level": "warning", "path": str(path), "mode": "644"}
    ]
    await database.close()


async def test_doctor_sees_the_revisions_without_changing_anything(open_store: OpenStore, shared_url: str) -> None:
    """Before the first start there is no schema, and for SQLite not even a file."""
    store = open_store(shared_url)
    before = await store.check()
    assert (before.current_revision, before.head_revision) == (None, REVISIONS[-1])
    assert before.reachable == (store.database.address.kind == "postgresql")
    await store.migrate()
    after = await store.check()
    assert (after.reachable, after.current_revision, after.reason) == (True, REVISIONS[-1], None)


async def test_doctor_says_why_it_cannot_look(open_store: OpenStore, postgres_url: str) -> None:
    """With the password left out of the URL."""
    store = open_store(postgres_url.replace("postgres:@", "nobody:s3cret@"))
    found = await store.check()
    assert not found.reachable
    assert "nobody" in str(found.reason)
    assert "s3cret" not in found.place


def test_the_revisions_are_told_without_alembic() -> None:
    assert schema.revisions() == tuple(REVISIONS)


async def test_a_database_that_is_migrated_needs_no_alembic(
    open_store: OpenStore, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(shared_url)
    await store.migrate()

    async def upgrading(database: Database) -> None:
        raise AssertionError(database.address.place)

    monkeypatch.setattr(migrations, "upgrade", upgrading)
    assert await store.migrate() == (schema.newest(), schema.newest())


async def test_a_database_of_an_earlier_release_is_not_taken_for_the_newest(shared_url: str) -> None:
    database = Database(shared_url)
    assert not await schema.is_newest(database)
    await migrations.upgrade(database, REVISIONS[-2])
    assert not await schema.is_newest(database)
    await migrations.upgrade(database)
    assert await schema.is_newest(database)
    await database.close()


_SUMMARY = (
    "INSERT INTO summary_chunks (tenant, id, conversation_id, series, level, version, from_digest, through_digest,"
    " last_message_digest, first_index, last_index, through_turn, carried, text, tokens, model, prompt_version,"
    " children, created_at, deactivated_at) VALUES ('t', :id, 'c', 's', 0, :version, :first, :last, :last, 0, 1, 1,"
    " '[]', 'text', 9, 'm', 'p', '[]', 1, :gone)"
)


async def test_of_each_range_the_summary_in_use_stays(shared_url: str) -> None:
    """Release 0.1 kept what was edited, deactivated or undone, with a version."""
    database = Database(shared_url)
    await migrations.upgrade(database, "0034")
    rows = [
        {"id": "edited-away", "version": 1, "last": b"2", "gone": 5},
        {"id": "edited", "version": 2, "last": b"2", "gone": None},
        {"id": "older", "version": 1, "last": b"3", "gone": None},
        {"id": "newer", "version": 2, "last": b"3", "gone": None},
        {"id": "undone", "version": 1, "last": b"4", "gone": 5},
        {"id": "alone", "version": 3, "last": b"5", "gone": None},
    ]
    async with database.writing() as connection:
        await connection.execute(text(_SUMMARY), [{"first": b"1", **row} for row in rows])
    await migrations.upgrade(database)
    async with database.reading() as connection:
        kept = await connection.execute(text("SELECT id FROM summary_chunks ORDER BY id"))
        assert list(kept.scalars()) == ["alone", "edited", "newer"]
    await database.close()


_CONVERSATION = (
    "INSERT INTO conversations (tenant, id, model, turns, messages, requests, status, tokens_before, tokens_after,"
    ' "window", coverage, summaries, last_message, created_at, updated_at)'
    " VALUES ('t', :id, 'm', 1, 1, 1, 'full', 1, 1, 1, '[]', '[]', :last, 1, 1)"
)
_MESSAGE = (
    "INSERT INTO messages (tenant, id, conversation_id, previous_id, position, kind, role, format, sent, tokens,"
    " request_id, created_at)"
    " VALUES ('t', :id, :talk, :before, :position, 'user', 'user', 'messages', :sent, 7, 'r', :at)"
)


async def test_chains_of_messages_become_the_latest_history_of_each_conversation(
    open_store: OpenStore, shared_url: str
) -> None:
    """Where its last message was not stored, the branch that was stored last."""
    database = Database(shared_url)
    await migrations.upgrade(database, "0035")
    head = bytes(range(16))
    mac = blake2b(head, digest_size=12, person=b"steno-message")
    mac.update(b"known")
    last = f"msg_{mac.hexdigest()}"
    told: list[dict[str, Any]] = [
        {"id": "k0", "talk": "known", "before": None, "position": -1, "sent": '"old rules"', "at": 1},
        {"id": "k1", "talk": "known", "before": None, "position": -1, "sent": '"rules"', "at": 2},
        {"id": "k2", "talk": "known", "before": None, "position": 0, "sent": '"a \\ud800 ä"', "at": 1},
        {"id": last, "talk": "known", "before": "k2", "position": 1, "sent": '"b"', "at": 2},
        {"id": "k4", "talk": "known", "before": "k2", "position": 1, "sent": '"branch"', "at": 3},
        {"id": "o1", "talk": "other", "before": None, "position": 0, "sent": '"first"', "at": 1},
        {"id": "o2", "talk": "other", "before": "o1", "position": 1, "sent": '"second"', "at": 2},
    ]
    talks: list[dict[str, Any]] = [
        {"id": "known", "last": last},
        {"id": "other", "last": "gone"},
        {"id": "empty", "last": None},
    ]
    async with database.writing() as connection:
        await connection.execute(text(_CONVERSATION), talks)
        await connection.execute(text(_MESSAGE), told)
        heads = "INSERT INTO heads (tenant, digest, conversation_id, turn) VALUES ('t', :head, 'known', 1)"
        await connection.execute(text(heads), [{"head": head}, {"head": b"another"}])
    await database.close()
    store = open_store(shared_url)
    await store.start()
    known = await store.history("t", "known")
    assert known is not None
    assert [(each.index, each.sent, each.tokens) for each in known.messages] == [
        (-1, '"rules"', 7),
        (0, '"a \\ud800 ä"', 7),
        (1, '"b"', 7),
    ]
    assert (known.format, known.head, known.digests, known.is_latest) == ("messages", head, frozenset({head}), True)
    other = await store.history("t", "other")
    assert other is not None
    assert ([each.sent for each in other.messages], other.head) == (['"first"', '"second"'], None)
    assert await store.history("t", "empty") is None
