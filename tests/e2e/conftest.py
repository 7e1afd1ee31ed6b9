"""A provider, and Steno before it, each under a real server on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands, running
from tests.e2e.commands import Serving
from tests.e2e.forks import Forks
from tests.e2e.running import WINDOW, StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider

TABLES = Path(__file__).parents[2] / ".tables"
"""Where Steno finds its tokenizer tables too: both count alike."""
Serve = Callable[..., Serving]


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    """What `commands` starts need not import everything anew."""
    started = commands.forks = Forks(commands.environment({}), commands.ROOT)
    yield
    started.close()
    commands.forks = None


@pytest.fixture
def simulator() -> Simulator:
    """The provider, which `provider` runs: to script it and to read its log."""
    return Simulator(models="any", window=WINDOW, tables=TABLES)


@pytest.fixture
def provider(simulator: Simulator) -> Iterator[RunningServer]:
    """The running simulator."""
    with simulator.serve() as server:
        yield server


@pytest.fixture
def serve(tmp_path: Path, provider: RunningServer) -> Iterator[Serve]:
    """Starts `steno serve` before the simulator, each time in an empty folder if it is called more than once."""
    numbers = count()
    with ExitStack() as started:

        def start(*arguments: str, folder: Path = tmp_path, **options: Any) -> Serving:
            if (number := next(numbers)) and folder == tmp_path:
                folder = tmp_path / f"process{number}"
            folder.mkdir(exist_ok=True)
            options = {"STENO_MODELS": commands.MODELS, **options}
            serving = commands.serve(["--upstream", f"{provider.url}/v1", *arguments], folder, **options)
            started.callback(serving.kill)
            return serving

        yield start


@pytest.fixture
def scripted() -> Iterator[ScriptedProvider]:
    """A provider of raw sockets."""
    with ScriptedProvider() as provider:
        yield provider


@pytest.fixture
def steno(start_steno: StartSteno, provider: RunningServer) -> StartSteno:
    """Starts Steno before the simulator, with settings of its own; call it as often as replicas are needed."""
    return partial(start_steno, provider.url)


@pytest.fixture
def before_scripted(start_steno: StartSteno, scripted: ScriptedProvider) -> StartSteno:
    """Starts Steno before the raw sockets."""
    return partial(start_steno, scripted.url)


@pytest.fixture
def start_steno(monkeypatch: pytest.MonkeyPatch) -> Iterator[StartSteno]:
    """Starts Steno before the provider at an address without `/v1`."""
    running.forget_environment(monkeypatch)
    with ExitStack() as started:

        def start(provider_url: str, **sections: object) -> Steno:
            steno = running.start(provider_url, sections)
            started.callback(steno.stop)
            return steno

        yield start
