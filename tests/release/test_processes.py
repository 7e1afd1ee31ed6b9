"""Processes that die at any step of a compaction, disagree about the time, or are of two releases: one database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from app.store import Store, schema
from app.store.tables import conversations, histories, leases, now_ms, summary_chunks
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import ROOT, SECRET
from tests.e2e.conftest import Serve
from tests.e2e.histories import chat, long_history, turns
from tests.e2e.raw import Answer, get, post
from tests.e2e.running import StartSteno
from tests.release.handicapped import STEPS, WAITS

LONG = long_history()
TTL_SECONDS = 15.0
HOUR = 3_600.0
KEY = {"authorization": "Bearer sk-test"}


@pytest.fixture
def serve(serve: Serve) -> Serve:
    """They share a secret, and whatever database they are given."""
    return partial(serve, STENO_SECRET=SECRET, STENO_UPSTREAM__DISCOVER_WINDOWS="false")


def ask(url: str, messages: list[Any]) -> Answer:
    answered = post(url, chat(messages), timeout=60)
    assert answered.status == 200, answered.body
    return answered


def stored(answered: Answer) -> tuple[str | None, str | None]:
    return answered.header("x-context-status"), answered.header("x-context-reason")


# Killed


class Rows:
    """What is in the database, past every process."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def leases(self) -> list[float]:
        """The seconds that each still holds by the database's clock; none where it expired."""
        left = (leases.c.expires_at - now_ms()) / 1000.0
        return [max(0.0, float(seconds)) for (seconds,) in self._do(select(left))]

    @property
    def chunks(self) -> list[str]:
        """Their texts."""
        return [text for (text,) in self._do(select(summary_chunks.c.text))]

    @property
    def texts(self) -> list[str]:
        """Names of the tables that have a text."""
        tables = (conversations, summary_chunks, histories)
        return [table.name for table in tables if self._do(select(table.c.tenant))]

    def _do(self, statement: Any) -> list[Any]:
        async def execute() -> list[Any]:
            store = Store(self._url)
            try:
                async with store.database.writing() as connection:
                    result = await connection.execute(statement)
                    return list(result) if result.returns_rows else []
            finally:
                await store.close()

        return asyncio.run(execute())


@pytest.mark.parametrize("step", STEPS)
def test_a_process_that_is_killed_leaves_nothing_half_done(
    serve: Serve, steno: StartSteno, simulator: Simulator, shared_url: str, step: str
) -> None:
    """The next one takes over once the lease has ended; what was committed is used, and what was not never happened."""
    url, steps = shared_url, list(STEPS)
    dying = serve(module="tests.release.handicapped", DATABASE_URL=url, DIE_AT=step)
    with pytest.raises(httpx2.TransportError):
        httpx2.post(f"{dying.url}/v1/chat/completions", content=chat(LONG), headers=KEY, timeout=30.0)
    assert dying.wait() == -9
    rows = Rows(url)
    has_lease, is_asked, is_stored = (
        steps.index(step) >= steps.index(name)
        for name in ("before the summary is asked for", "while the summary comes", "before the lease is released")
    )
    assert len(rows.chunks) == is_stored
    assert len(rows.leases) == (has_lease and step != "before the request goes on")
    held = max(rows.leases, default=0.0)
    assert (held > 0) == (has_lease and step != "before the request goes on")
    assert held <= TTL_SECONDS
    other = steno(storage={"url": url})
    assert stored(ask(other.url, LONG)) == ("summarized", None)
    assert stored(ask(other.url, LONG)) == ("summarized", None)
    assert len(simulator.summaries) == (1 if is_stored else 1 + is_asked)
    assert rows.chunks == [simulator.summaries[-1].text]
    assert len(rows.leases) == (step == "before the lease is released")
    assert simulator.chats[0].body == simulator.chats[1].body


# Clocks


def test_processes_whose_clocks_are_an_hour_off_agree_whose_the_lease_is(
    serve: Serve, simulator: Simulator, postgres_url: str
) -> None:
    """It is the database's clock that counts. One is ahead, one behind: by their own, the second could never wait."""
    options = {"module": "tests.release.handicapped", "DATABASE_URL": postgres_url}
    ahead, behind = (serve(**options, CLOCK_AHEAD=str(hours * HOUR)) for hours in (1, -1))
    for number, (first, second) in enumerate([(ahead, behind), (behind, ahead)]):
        talk = turns(15, first=100 * number)
        simulator.next_summary(delay=1.5)
        answers = [asked_beside(first.url, talk)]
        wait_for_summaries(simulator, number + 1)
        assert sum(0 < seconds <= TTL_SECONDS for seconds in Rows(postgres_url).leases) == 1
        answers.append(asked_beside(second.url, talk))
        assert [stored(answer()) for answer in answers] == [("summarized", None)] * 2
        assert len(simulator.summaries) == number + 1


def wait_for_summaries(simulator: Simulator, number: int) -> None:
    """Until so many were asked for."""
    assert simulator.wait_for(lambda _: len(simulator.summaries) == number)


def asked_beside(url: str, messages: list[Any]) -> Callable[[], Answer]:
    """Asked in a thread; call it for the answer."""
    pool = ThreadPoolExecutor(1)
    asking = pool.submit(ask, url, messages)
    pool.shutdown(wait=False)
    return asking.result


# Releases

NEXT = '''"""What the next release adds."""

import sqlalchemy as sa
from alembic import op

revision = "9001"
down_revision = "%s"


def upgrade() -> None:
    for table in ("conversations", "summary_chunks", "leases", "usage_records"):
        op.add_column(table, sa.Column("newer", sa.Text(), nullable=True))
    op.create_table("newer", sa.Column("id", sa.Text(), primary_key=True))
'''


def next_release(folder: Path) -> Path:
    """A copy of the code whose schema is one revision ahead."""
    checkout = commands.checkout_without_tables(folder)
    for name in (".tables", "tests"):
        (checkout / name).symlink_to(ROOT / name)
    (checkout / "alembic" / "versions" / "9001_newer.py").write_text(NEXT % schema.NEWEST)
    code = checkout / "app" / "store" / "schema.py"
    code.write_text(code.read_text().replace(f'"{schema.NEWEST}")', f'"{schema.NEWEST}", "9001")'))
    return checkout


def test_two_releases_share_a_database_while_one_replaces_the_other(
    serve: Serve, simulator: Simulator, empty_postgres_url: str, tmp_path: Path
) -> None:
    """The newer one migrates under the older one's feet: both go on, and with the same summaries."""
    old = serve(DATABASE_URL=empty_postgres_url)
    before, between, after = (turns(15, first=first) for first in (1, 101, 201))
    assert stored(ask(old.url, before)) == ("summarized", None)
    new = serve(checkout=next_release(tmp_path / "next"), DATABASE_URL=empty_postgres_url)
    for first, second, talk in ((new, old, before), (old, new, between), (new, old, after)):
        for release in (first, second):
            assert stored(ask(release.url, talk)) == ("summarized", None)
    assert len(simulator.summaries) == 3
    assert len({record.body for record in simulator.chats}) == 3
    old.terminate()
    assert old.wait() == 0
    again = commands.run(["serve", "--port", "0"], old.folder, DATABASE_URL=empty_postgres_url, STENO_SECRET=SECRET)
    assert again.returncode == 1
    assert "this release of Steno migrates from 0029 on, and knows none after " in again.stderr
    assert stored(ask(new.url, [*after[:-1], {"role": "user", "content": "And now?"}])) == ("summarized", None)
    listed = get(new.url, "/context/conversations", b"authorization: Bearer sk-test").json["data"]
    assert len(listed) == 3
    assert not [line for release in (old, new) for line in release.log if line["level"] in ("error", "warning")]


# Erased


@pytest.mark.parametrize("what", ["tenant", "conversations/one"])
@pytest.mark.parametrize("step", WAITS)
def test_what_is_erased_while_another_process_compacts_it_in_the_background_stays_erased(
    serve: Serve, postgres_url: str, step: str, what: str
) -> None:
    """Whatever step the other one is at: no summary, message or word of it is stored later."""
    variables = {"DATABASE_URL": postgres_url, "STENO_STORAGE__MESSAGES": "true"}
    busy = serve(module="tests.release.handicapped", WAIT_AT=step, **variables)
    eraser = serve(**variables)
    for number in range(7, 11):
        assert post(busy.url, chat(turns(number), conversation_id="one")).header("x-context-status") == "full"
    commands.until((busy.folder / "waits").exists)
    commands.until(lambda: get(eraser.url, "/context/conversations/one").status == 200)
    assert get(eraser.url, f"/context/{what}", method="DELETE").status == 200
    (busy.folder / "go").touch()
    busy.terminate()
    assert busy.wait() == 0
    assert Rows(postgres_url).texts == []
