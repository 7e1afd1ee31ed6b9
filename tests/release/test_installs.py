"""Steno installed as docs/install.md says, into an environment of its own, and used from another folder.

What it depends on is taken from the tests' environment, and only pip is tried. `make installs` installs all of it from
the registry instead, in each of the documented ways.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import openai
import pytest

from app import __version__
from app.http.loopback import RunningServer
from tests.e2e.commands import Serving, until

ROOT = Path(__file__).parents[2]
TABLES = ROOT / ".tables"
CLEAN = bool(os.environ.get("CLEAN"))
UV = Path(sys.executable).with_name("uv")

DOCUMENTED = ("uv tool install .", "pipx install .", "python3 -m venv /opt/steno && /opt/steno/bin/pip install .")

pytestmark = [pytest.mark.timeout(600 if CLEAN else 120)]
needs_registry = pytest.mark.skipif(not CLEAN, reason="it installs from the registry: make installs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    finished([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)], ROOT)
    [built] = folder.glob("*.whl")
    return built


@dataclass(frozen=True)
class Installed:
    steno: Path
    folder: Path
    """Where it is started: nothing of the checkout is there."""

    def environment(self, **variables: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **variables}

    def run(self, *arguments: str, **variables: str) -> str:
        return finished([str(self.steno), *arguments], self.folder, self.environment(**variables))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq"]
    if CLEAN:
        finished([*pip, "."], ROOT)
    else:
        [packages] = environment.glob("lib/python*/site-packages")
        (packages / "of_the_tests.pth").write_text("\n".join(site.getsitepackages()))
        finished([*pip, "--no-deps", "--no-index", "--no-build-isolation", "."], ROOT)
    return Installed(environment / "bin" / "steno", tmp_path_factory.mktemp("elsewhere"))


def finished(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a command printed that ended well."""
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_wheel_has_all_of_the_code_what_it_reads_and_the_licences(wheel: Path) -> None:
    listed = finished(["git", "ls-files", "app", "lab", "alembic", ":!lab/benchmarks"], ROOT).split()
    wanted = {f"app/{name}" if name.startswith("alembic/") else name for name in listed}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = Parser().parsestr(archive.read(f"steno-{__version__}.dist-info/METADATA").decode())
    assert wanted | {"app/tokens/tables.txt"} <= names
    assert {name for name in names if not name.startswith(("app/", "lab/", "steno-"))} == set()
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"LICENSE", "app/providers/data/NOTICE"} == set(metadata.get_all("License-File", []))


def test_a_fresh_database_is_migrated_and_lies_where_it_was_named(installed: Installed) -> None:
    url = f"sqlite:///{installed.folder}/migrated.db"
    assert "Migrated from nothing to " in installed.run("migrate", "--database-url", url)


def test_tables_that_are_there_are_not_fetched_again(installed: Installed) -> None:
    home = installed.folder / "home"
    shutil.copytree(TABLES, home / "tables")
    unreachable = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "UV_INDEX_URL": "http://127.0.0.1:9/"}
    said = installed.run("tables", STENO_HOME=str(home), **unreachable)
    assert said.strip() == f"Token tables {home / 'tables'}"


def test_it_serves_a_client_from_any_folder_and_stops_when_it_is_asked_to(
    installed: Installed, provider: RunningServer, tmp_path: Path
) -> None:
    shutil.copytree(TABLES, tmp_path / "tables")
    with (tmp_path / "stdout").open("wb") as stdout, (tmp_path / "stderr").open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [installed.steno, "serve", "--port", "0", "--upstream", f"{provider.url}/v1"],
            cwd=installed.folder,
            env=installed.environment(STENO_HOME=str(tmp_path)),
            stdout=stdout,
            stderr=stderr,
        )
    serving = Serving(process, tmp_path)
    try:
        until(lambda: process.poll() is not None or any(line["event"] == "serving" for line in serving.log))
        [serving.url] = [line["url"].removesuffix("/v1") for line in serving.log if line["event"] == "serving"]
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="sk-test", max_retries=0, timeout=30) as client:
            answer = client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "Hello."}])
        assert answer.model_extra is not None
        assert answer.model_extra["context_status"] == "full"
        assert serving.get("/readyz")["tokenizer"] == "tiktoken"
        serving.terminate()
        assert serving.wait() == 0, serving.errors
    finally:
        serving.kill()
    assert (tmp_path / "steno.db").is_file()


@pytest.mark.skipif(not CLEAN, reason="it takes long: make installs")
def test_the_demo_compacts_a_conversation(installed: Installed) -> None:
    assert "summarized" in installed.run("demo", TIKTOKEN_CACHE_DIR=str(TABLES))


@needs_registry
def test_an_installed_steno_fetches_its_tables(installed: Installed) -> None:
    path = f"{UV.parent}:{os.environ['PATH']}"
    installed.run("tables", **registry(), PATH=path, STENO_HOME=str(installed.folder / "fetched"))
    assert {path.name for path in (installed.folder / "fetched" / "tables").iterdir()} == {
        path.name for path in TABLES.iterdir()
    }


def test_the_page_has_the_ways_that_are_tried() -> None:
    assert "```sh\n" + "\n".join(DOCUMENTED) + "\n```" in (ROOT / "docs" / "install.md").read_text()


@needs_registry
@pytest.mark.parametrize("command", DOCUMENTED, ids=["uv", "pipx", "pip"])
def test_each_documented_way_installs_it_from_a_checkout(command: str, tmp_path: Path) -> None:
    place = tmp_path / "steno"
    variables = {
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(place / "bin"),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "PIPX_BIN_DIR": str(place / "bin"),
    }
    environment = {**registry(), **variables, "PATH": f"{UV.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    written = command.replace("/opt/steno", str(place)).replace("pipx install", "uvx pipx install")
    finished(["/bin/sh", "-c", written], ROOT, environment)
    steno = Installed(place / "bin" / "steno", tmp_path)
    assert steno.run("--version").strip() == f"Steno {__version__}"
    assert "Migrated from nothing to " in steno.run("migrate", "--database-url", f"sqlite:///{tmp_path}/new.db")


@needs_registry
@pytest.mark.parametrize("source", ["checkout", "wheel"])
def test_uvx_runs_it_without_installing_anything(source: str, wheel: Path, tmp_path: Path) -> None:
    variables = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "STENO_HOME": str(tmp_path / "home")}
    uvx = [str(UV), "tool", "run", "--from", str(wheel if source == "wheel" else ROOT), "steno"]
    assert "tables" in finished([*uvx, "tables"], tmp_path, variables)
    assert "summarized" in finished([*uvx, "demo"], tmp_path, variables)


def test_two_make_targets_at_once_make_one_environment(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/setup_venv.sh", tmp_path / "scripts")
    (tmp_path / "requirements").mkdir()
    for name in ("run", "dev"):
        (tmp_path / f"requirements/{name}.txt").write_text("# nothing\n")
    with ThreadPoolExecutor() as threads:
        said = [*threads.map(lambda _: finished(["/bin/sh", "scripts/setup_venv.sh", "dev"], tmp_path), range(2))]
    assert sorted(map(bool, said)) == [False, True], "both made it"


def registry() -> dict[str, str]:
    """How this machine reaches the registry."""
    return {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_"))}
