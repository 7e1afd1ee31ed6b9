"""`steno doctor`: what it finds, what it advises, and what it never shows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import text

from app import __version__
from app.cli.doctor import examine, is_healthy, show
from app.http.loopback import RunningServer
from app.settings import load
from app.settings.storage import server_secret
from app.store import Store
from app.store.engine import Database
from app.store.schema import NEWEST, upgrade
from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.commands import SECRET

Examine = Callable[..., Awaitable["Report"]]


class Report:
    """What was printed, and the verdict."""

    def __init__(self, text: str, healthy: bool) -> None:
        self.text = text
        self.healthy = healthy

    def finding(self, subject: str) -> str:
        """A finding with its remedy, in one line without the padding."""
        lines = self.text.replace(_BEFORE_REMEDY, " -> ").splitlines()
        [line] = [line for line in lines if subject in line and line.startswith(_STATES)]
        return " ".join(line.split())


_BEFORE_REMEDY = f"\n{'':11}-> "
_STATES = ("  ok ", "  warning ", "  problem ")


@pytest.fixture
def doctor(
    provider: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Examine:
    """Examines Steno before the simulator with a migrated SQLite file, unless the sections say otherwise."""
    running.forget_environment(monkeypatch)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STENO_HOME", str(tmp_path / "home"))

    async def examine_with(**sections: Any) -> Report:
        if "storage" not in sections:
            settings = load()
            await bound(settings.storage.address, server_secret(settings))
        sections = {"upstream": {"base_url": f"{provider.url}/v1"}, **sections}
        found = await examine(load(**sections))
        show(found)
        return Report(capsys.readouterr().out, is_healthy(found))

    return examine_with


async def bound(url: str, secret: bytes = SECRET.encode()) -> None:
    """Make a database, or let a migrated one belong to a secret."""
    store = Store(url, secret=secret)
    await store.migrate()
    await store.close()


ALL_8K = [{"match": "*", "context_window": 8_000}]


async def test_a_healthy_set_up_has_nothing_to_say(doctor: Examine, provider: RunningServer) -> None:
    report = await doctor(models=ALL_8K)
    assert report.healthy
    assert report.text.startswith(f"Steno {__version__} starts and works (problems: 0, warnings: 0)\n")
    assert report.finding("upstream").startswith(f"ok upstream {provider.url}/v1: reachable, lists ")
    assert report.finding("tokenizer tables") == "ok tokenizer tables: found and verified"
    assert f"schema {NEWEST}" in report.finding("database")


# The provider, and what else one look at the settings finds

FOUND: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("doctor.yaml").read_text("utf-8"))


@pytest.mark.parametrize("name", FOUND)
async def test_what_is_found(
    doctor: Examine, simulator: Simulator, provider: RunningServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = FOUND[name]
    if key := case.get("key"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
    for answer in case.get("answers", ()):
        simulator.next_other(**{**answer, "body": answer["body"].encode()} if "body" in answer else answer)
    if "models" in case:
        simulator.models = case["models"]
    sections = json.loads(json.dumps(case.get("settings", {})).replace("{provider}", provider.url))
    report = await doctor(**sections)
    assert report.healthy is case["healthy"]
    for subject, expected in case["findings"].items():
        found = report.finding(subject)
        for part in [expected] if isinstance(expected, str) else expected:
            assert part.replace("{provider}", provider.url) in found
    assert "hunter2" not in report.text
    asked = simulator.others[0].header("authorization") if simulator.others else None
    assert asked == (f"Bearer {key}" if key else None)


async def test_each_upstream_is_asked_with_its_own_key_and_no_other(
    doctor: Examine, simulator: Simulator, provider: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "sk-other")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-default")
    address = {"base_url": f"{provider.url}/v1"}
    simulator.when(lambda record: record.header("authorization") is None, status=401)
    report = await doctor(upstreams={"keyed": {**address, "api_key_env": "OTHER_KEY"}, "bare": address})
    assert report.healthy
    assert "reachable, lists " in report.finding("upstream keyed")
    assert "reachable; without a key it does not list its models" in report.finding("upstream bare")
    keys = {record.header("authorization") for record in simulator.log}
    assert (keys, len(simulator.log)) == ({"Bearer sk-default", "Bearer sk-other", None}, 3)


# The database


async def test_a_database_of_another_secret_is_a_problem_with_both_ways_out(doctor: Examine, shared_url: str) -> None:
    """Also where the secret that was kept beside it is missing."""
    await bound(shared_url)
    assert (await doctor(storage={"url": shared_url}, secret=SECRET)).finding("database").startswith("ok database")
    others = (
        [{"secret": "another secret, of the same length"}, {}] if "sqlite" in shared_url else [{"secret": "x" * 32}]
    )
    for other in others:
        report = await doctor(storage={"url": shared_url}, **other)
        assert not report.healthy
        assert report.text.startswith(f"Steno {__version__} does not start")
        found = report.finding("made with another secret")
        assert "-> Give Steno the old secret" in found
        assert "Or erase what was made with it: stop every Steno that uses the database" in found


async def test_a_newer_schema_is_a_problem(doctor: Examine, shared_url: str) -> None:
    await upgraded(shared_url, pretending="9999")
    report = await doctor(storage={"url": shared_url}, secret=SECRET)
    assert not report.healthy
    assert f"and knows none after {NEWEST}" in report.finding("database")


# Secret and tables


async def test_a_secret_that_others_can_read_is_a_warning(doctor: Examine, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "steno.secret").write_text(SECRET)
    (tmp_path / "home" / "steno.secret").chmod(0o644)
    report = await doctor()
    assert "can be read by others -> chmod 600" in report.finding("secret:")


async def upgraded(url: str, pretending: str | None = None) -> None:
    database = Database(url)
    await upgrade(database)
    if pretending:
        async with database.writing() as connection:
            await connection.execute(text("update alembic_version set version_num = :new"), {"new": pretending})
    await database.close()
