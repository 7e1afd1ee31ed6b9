"""The stage: Steno on a real socket of loopback, and behind it a provider whose log can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.http.loopback import serve
from app.main import create_app
from app.settings import load
from app.settings.presets import PRESET_NAMES
from app.settings.storage import tables_folder
from app.tokens.counting_rules import rules_for
from app.tokens.tokenizer import Tokenizer
from lab.simulator import Simulator

STORE_SECONDS = 5.0
"""Bound of a database call: a busy machine must not make Steno do without its store, as it would in earnest."""
DIGEST_KEY = "digests of a replay are the same each time"
"""The server secret: the database ends with the replay."""


@dataclass(frozen=True, slots=True)
class Stage:
    base_url: str
    """Steno's."""
    provider: Simulator
    count: Callable[[str], int]


def counter(model: str) -> Callable[[str], int]:
    """Tokens of a text, as that model counts them."""
    return Tokenizer(tables_folder()).counter(rules_for(model).encoding)


@contextmanager
def stage(
    model: str,
    window: int,
    compaction: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Stage]:
    """Steno in front of the simulator.

    `compaction` are settings of that section and `settings` those of others, before those of the environment.
    Raises `ConfigurationError` where the environment does not allow it.
    """
    count = counter(model)
    simulator = Simulator(window=window, models="any", count=count)
    with simulator.serve() as behind:
        loaded = load(
            # The replay has a key of its own, and one provider: not those of the settings in effect.
            upstream={"base_url": f"{behind.url}/v1", "discover_windows": False, "api_key_env": None},
            models=[{"match": "*", "context_window": window}],
            # What a request led to is judged with it: nothing is made beside the requests unless that is asked for.
            compaction={"background": {"enabled": False}, **(compaction or {})},
            storage={"url": "memory", "timeout_seconds": STORE_SECONDS},
            secret=DIGEST_KEY,
            **(settings or {}),
        )
        steno = create_app(loaded.model_copy(update={"upstreams": {}}))
        with serve(steno, own_headers=False) as server:
            yield Stage(f"{server.url}/v1", simulator, count)


# Presets to replay

MAY_REFUSE = frozenset({"off", "openclaw-adaptive", "openclaw-aggressive"})
"""Presets that change nothing, or only tool results: what is still too large then goes to the provider as it is."""


def chosen(names: str) -> tuple[str, ...]:
    """The presets of a list such as `default,rolling`, or all of them. Raises `ConfigurationError`."""
    listed = PRESET_NAMES if names == "all" else tuple(names.split(","))
    for name in listed:  # Before the first replay begins: a table takes minutes.
        load(compaction={"preset": name})
    return listed
