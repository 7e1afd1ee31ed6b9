"""Migrations: rows survive, the tables end as the code expects, and many processes may start at once."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, MetaData, Table, insert, select, text
from structlog.testing import capture_logs

from app.store import DatabaseUnusable, schema
from app.store.chunks import chunks_in
from app.store.conversations import find_conversation
from app.store.engine import Database
from app.store.tables import metadata
from tests.databases import database_on
from tests.integration.examples import SERIES, TENANT, OpenStore, StartStore, chain, chunk, put, seen, take
from tests.release_0_1 import ROWS, make_release_0_1

ROOT = Path(__file__).parents[2]
REVISIONS = [each.revision for each in reversed(list(ScriptDirectory(str(schema.scripts())).walk_revisions()))]
"""As alembic finds them, by what each file says of the one before."""


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """Here without tables."""
    return empty_postgres_url


def read(connection: Connection, name: str) -> list[dict[str, Any]]:
    table = Table(name, MetaData(), autoload_with=connection)
    return [dict(row._mapping) for row in connection.execute(select(table).order_by(*table.primary_key))]


async def test_rows_of_release_0_1_survive(shared_url: str, tmp_path: Path) -> None:
    """But for replaced summaries and leases that are over; keys, links and acts of operators are exported."""
    await make_release_0_1(shared_url, rows=True)
    database, export = Database(shared_url), tmp_path / "exports" / "rows.jsonl"
    async with database.reading() as connection:
        before = {name: await connection.run_sync(read, name) for name in ROWS}
    await schema.upgrade(database, export)
    before["summary_chunks"] = [row for row in before["summary_chunks"] if row["deactivated_at"] is None]
    assert {row["expires_at"] < 0 for row in before.pop("leases")} == {True}
    assert len(before["summary_chunks"]) == len(ROWS["summary_chunks"]) - 1
    async with database.reading() as connection:
        for name in before.keys() & metadata.tables:
            kept = before[name][0].keys() & metadata.tables[name].columns.keys()
            rows = [{key: row[key] for key in kept} for row in before[name]]
            after = await connection.run_sync(read, name)
            assert [{key: row[key] for key in kept} for row in after] == rows
    await database.close()
    exported = [json.loads(line) for line in export.read_text().splitlines()]
    assert [row["table"] for row in exported] == ["client_keys", "tenant_links", "operator_acts"]
    assert exported[0] | {"table": None} == before["client_keys"][0] | {"table": None}


async def test_rows_to_export_need_a_file(shared_url: str, tmp_path: Path) -> None:
    """A start names none."""
    await make_release_0_1(shared_url, rows=True)
    (tmp_path / "file").touch()
    database = Database(shared_url)
    for export in (None, tmp_path / "file" / "rows.jsonl", tmp_path):
        with pytest.raises(DatabaseUnusable, match=r"drops 3 rows \(keys, links.*`steno migrate`"):
            await schema.upgrade(database, export)
    async with database.reading() as connection:
        assert await schema.current(connection) == "0029"
    await database.close()


async def test_encrypted_texts_are_refused_with_the_command_that_decrypts_them(shared_url: str, tmp_path: Path) -> None:
    """And nothing is changed."""
    await make_release_0_1(shared_url, rows=True)
    database = Database(shared_url)
    for table, column in (("messages", "sent"), ("summary_chunks", "text")):
        async with database.writing() as connection:
            await connection.execute(text(f"UPDATE {table} SET {column} = 'sealed:1:0a1b2c3d:AAAA'"))  # noqa: S608 - constants
        with pytest.raises(DatabaseUnusable, match=r"encrypted.*`steno migrate --decrypt NAME` of commit \w{8} once"):
            await schema.upgrade(database, tmp_path / "rows.jsonl")
        async with database.writing() as connection:
            await connection.execute(text(f"UPDATE {table} SET {column} = 'plain'"))  # noqa: S608 - constants
    async with database.reading() as connection:
        assert await schema.current(connection) == "0029"
    assert not (tmp_path / "rows.jsonl").exists()
    await database.close()


async def test_a_migration_that_is_interrupted_changes_nothing(
    shared_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction on both databases: the next one begins where this one did."""
    await make_release_0_1(shared_url, rows=True)
    database = Database(shared_url)
    finish = command.upgrade

    def fail_at_the_end(*arguments: Any) -> None:
        finish(*arguments)
        raise CommandError("the end")

    async with database.reading() as connection:
        before = {name: await connection.run_sync(read, name) for name in ROWS}
    with monkeypatch.context() as patched:
        patched.setattr("alembic.command.upgrade", fail_at_the_end)
        with pytest.raises(DatabaseUnusable, match="the end"):
            await schema.upgrade(database, tmp_path / "rows.jsonl")
    async with database.reading() as connection:
        assert {name: await connection.run_sync(read, name) for name in ROWS} == before
    assert await schema.upgrade(database, tmp_path / "rows.jsonl") == ("0029", False)
    await database.close()


async def test_a_database_before_release_0_1_is_refused(open_store: OpenStore, shared_url: str) -> None:
    """With the release that migrates it first."""
    await make_release_0_1(shared_url)
    store = open_store(shared_url)
    async with store.database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0028'"))
    for attempt in (store.start, store.migrate, store.revision):
        with pytest.raises(DatabaseUnusable, match=r"revision 0028.*from 0029 on.*release 0\.1 at commit 21db7e6e"):
            await attempt()


def differences(connection: Connection) -> list[Any]:
    """What alembic would change, to make the tables those of the code."""

    def is_for_this_database(item: Any, _name: str, kind: str, *_: object) -> bool:
        return not (kind == "index" and item._ddl_if is not None and item._ddl_if.dialect != connection.dialect.name)

    options = {"compare_type": True, "include_object": is_for_this_database}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


PARTITIONED = """
    ALTER TABLE usage_records RENAME TO usage_records_before;
    ALTER INDEX pk_usage_records RENAME TO pk_usage_records_before;
    ALTER INDEX ix_usage_records_tenant_created_at RENAME TO ix_usage_records_tenant_created_at_before;
    CREATE TABLE usage_records (LIKE usage_records_before INCLUDING DEFAULTS) PARTITION BY RANGE (id);
    ALTER TABLE usage_records ADD CONSTRAINT pk_usage_records PRIMARY KEY (tenant, id);
    CREATE INDEX ix_usage_records_tenant_created_at ON usage_records (tenant, created_at);
    ALTER TABLE usage_records ATTACH PARTITION usage_records_before FOR VALUES FROM (MINVALUE) TO ('{third}');
    CREATE TABLE usage_records_20260101 PARTITION OF usage_records FOR VALUES FROM ('{third}') TO ('{sixth}');
    CREATE TABLE usage_records_rest PARTITION OF usage_records DEFAULT;
    GRANT SELECT ON usage_records TO PUBLIC
"""
"""As the release of revision 0029 did while it served."""


async def test_usage_records_in_partitions_become_one_table(postgres_url: str, tmp_path: Path) -> None:
    """With every record, the indexes of a new database, and the rights that others have."""
    await make_release_0_1(postgres_url, rows=True)
    database, ids = Database(postgres_url), sorted(row["id"] for row in ROWS["usage_records"])
    async with database.writing() as connection:
        before = await connection.run_sync(read, "usage_records")
        # A table that was there becomes a partition; the newest rows go to others.
        newest = "DELETE FROM usage_records WHERE id >= :id"
        await connection.execute(text(newest), {"id": ids[2]})
        for statement in PARTITIONED.format(third=ids[2], sixth=ids[5]).split(";"):
            await connection.execute(text(statement))
        table = await connection.run_sync(lambda sync: Table("usage_records", MetaData(), autoload_with=sync))
        await connection.execute(insert(table), [row for row in before if row["id"] >= ids[2]])
    await schema.upgrade(database, tmp_path / "rows.jsonl")
    async with database.reading() as connection:
        assert await connection.run_sync(read, "usage_records") == before
        tables = (await connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))).all()
        assert [name for name in tables if name.startswith("usage")] == ["usage_records"]
        granted = "SELECT privilege_type FROM information_schema.table_privileges WHERE grantee = 'PUBLIC'"
        assert await connection.scalar(text(f"{granted} AND table_name = 'usage_records'")) == "SELECT"
        assert await connection.run_sync(differences) == []
    await database.close()


async def test_a_new_database_is_as_a_migrated_one(postgres_server: str, tmp_path: Path) -> None:
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
    assert await schema.upgrade(made) == (None, False)
    await make_release_0_1(migrated_url)
    assert await schema.upgrade(migrated) == ("0029", False)
    for query in queries:
        found = []
        for database in (made, migrated):
            assert await schema.upgrade(database) == (schema.NEWEST, False)
            async with database.reading() as connection:
                rows = await connection.execute(text(query.replace(":", r"\:")))
                found.append(sorted(" ".join(str(tuple(row)).replace(r"\n", " ").split()) for row in rows))
        assert found[0] == found[1]
    await made.close()
    await migrated.close()


async def test_database_of_a_later_release_is_refused(open_store: OpenStore, shared_url: str) -> None:
    """Its tables may mean something else by now; the message names both revisions."""
    store = open_store(shared_url)
    await store.migrate()
    async with store.database.writing() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseUnusable, match=f"9999.*{REVISIONS[-1]}"):
        await store.start()
    assert store.reason is not None


async def test_a_running_release_goes_on_while_a_newer_one_migrates(start_store: StartStore, shared_url: str) -> None:
    """A rolling upgrade: migrations only add, and statements that were prepared before must not trip over that."""
    running = await start_store(shared_url)
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
    assert await running.renew_lease(lease)
    assert await running.keep_chunks(lease, [chunk(4, 8)])
    await running.release_lease(lease)
    assert len(await running.request(chunks_in, TENANT, SERIES, chain(9))) == 2
    running.writes.record(seen())
    await running.flush()
    assert await running.rest(find_conversation, TENANT, "c1") is not None
    assert running.reason is None


async def test_migration_that_fails_is_named_and_leaves_nothing_behind(open_store: OpenStore, shared_url: str) -> None:
    """`leases` is in the way, so the tables before it are undone too."""
    store = open_store(shared_url)
    async with store.database.writing() as connection:
        await connection.execute(text("CREATE TABLE leases (mine INTEGER)"))
    with pytest.raises(DatabaseUnusable, match=r"could not be made: .*leases"):
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


async def test_processes_that_start_at_once_migrate_once(shared_url: str) -> None:
    """One of three does it, the others wait and find it done."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MIGRATE, shared_url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        for _ in range(3)
    ]
    said = [await process.communicate() for process in processes]
    head = REVISIONS[-1]
    assert sorted(out.decode().strip() for out, _ in said) == sorted(["(None, False)"] + [f"('{head}', False)"] * 2)


# The files of a SQLite database


def mode_of(path: Path) -> str:
    return f"{path.stat().st_mode & 0o777:o}"


async def test_database_and_the_folder_made_for_it_are_for_their_user_alone(
    start_store: StartStore, tmp_path: Path
) -> None:
    """So are the files that SQLite puts beside it."""
    store = await start_store(f"sqlite:///{tmp_path}/one/two/steno.db")
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
    await make_release_0_1(f"sqlite:///{path}")
    database = Database(f"sqlite:///{path}")
    path.chmod(0o644)
    with capture_logs() as log:
        await schema.upgrade(database)
    assert (mode_of(path), mode_of(folder)) == ("600", "755")
    told = {"event": "database file closed to others", "log_level": "warning", "mode": "644"}
    assert log == [{**told, "path": f"{path}{suffix}"} for suffix in ("", "-wal", "-shm")]
    await database.close()


def test_the_revisions_are_told_without_alembic() -> None:
    assert tuple(REVISIONS) == schema.REVISIONS


async def test_a_database_that_is_migrated_needs_no_alembic(
    open_store: OpenStore, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(shared_url)
    await store.migrate()

    async def upgrading(database: Database) -> None:
        raise AssertionError(database.address.place)

    monkeypatch.setattr(schema, "upgrade", upgrading)
    await store.start()


_SUMMARY = (
    "INSERT INTO summary_chunks (tenant, id, conversation_id, series, level, version, from_digest, through_digest,"
    " last_message_digest, first_index, last_index, through_turn, carried, text, tokens, model, prompt_version,"
    " children, created_at, deactivated_at) VALUES ('t', :id, 'c', 's', 0, :version, :first, :last, :last, 0, 1, 1,"
    " '[]', 'text', 9, 'm', 'p', '[]', 1, :gone)"
)


async def test_of_each_range_the_summary_in_use_stays(shared_url: str) -> None:
    """Release 0.1 kept what was edited, deactivated or undone, with a version."""
    await make_release_0_1(shared_url)
    database = Database(shared_url)
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
    await schema.upgrade(database)
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
    start_store: StartStore, shared_url: str
) -> None:
    """Where its last message was not stored, the branch that was stored last."""
    await make_release_0_1(shared_url)
    database = Database(shared_url)
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
    store = await start_store(shared_url)
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
