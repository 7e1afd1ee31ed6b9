"""`steno models`: the context windows that Steno uses, and the source of each."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from msgspec import Struct

from app.cli.command import AsJson, Config, Upstream, commands, on_terminal, print_json, say, say_row, settings_of
from app.compaction.budget import Window
from app.http.headers import new_instance
from app.main import open_providers
from app.providers.model_listings import ListingOutcome, ModelListing
from app.providers.providers import Provider
from app.settings import DEFAULT_UPSTREAM, Settings
from app.store import Store

SOURCES = {
    "config": "your settings",
    "provider": "the provider",
    "learnt": "a refusal",
    "bundled": "Steno's table",
    "default": "a guess",
}
"""Sources of a window, in words."""

cli = commands()


@cli.command()
def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="These; otherwise all known.")] = None,
    upstream: Upstream = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List context windows, and where each comes from."""
    settings = settings_of(config, upstream={"base_url": upstream})
    (_show_json if as_json else _show)(asyncio.run(windows_of(settings, names or ())))


class Sized(Struct, frozen=True):
    model: str
    upstream: str
    window: Window


async def ask_for_models(provider: Provider) -> tuple[ListingOutcome, str | None]:
    """Ask the provider for its models; return its answer, and the variable whose key was used.

    The default upstream's key is shown to no other one.
    """
    variable = provider.settings.api_key_env or ("OPENAI_API_KEY" if provider.name == DEFAULT_UPSTREAM else None)
    key = os.environ.get(variable) if variable else None
    outcome = await provider.windows.listings.fetch([(b"authorization", f"Bearer {key}".encode())] if key else [])
    return outcome, variable if key else None


async def windows_of(settings: Settings, names: Sequence[str]) -> list[Sized]:
    """Return the windows of these models at the upstreams that they go to; without names, of all that are known."""
    store = Store("memory")
    providers = open_providers(settings, store, new_instance())
    try:
        found: list[Sized] = []
        for provider in providers.all:
            outcome, _ = await ask_for_models(provider)
            listed = set(outcome.models) if isinstance(outcome, ModelListing) else set()
            here = provider.windows.names() if not names else [name for name in names if name in listed]
            found += (Sized(name, provider.name, provider.windows.window_of(name)) for name in here)
        default = providers.default
        seen = {each.model for each in found}
        found += (Sized(name, default.name, default.windows.window_of(name)) for name in names if name not in seen)
        return sorted(found, key=lambda each: (each.model, each.upstream))
    finally:
        await providers.close()
        await store.close()


def _show(found: Sequence[Sized]) -> None:
    """Print a table that fits a terminal, or rows for other programs; if it is empty, a line that says why."""
    if not found:
        asked = "No provider lists its models, and the settings name none. Ask for one: steno models gpt-4o"
        say(asked, file=sys.stderr)
    elif on_terminal():
        from rich.console import Console  # noqa: PLC0415 - for this alone
        from rich.table import Table  # noqa: PLC0415 - likewise

        table = Table(box=None, pad_edge=False)
        table.add_column("model", overflow="fold")
        for name in ("window", "prompt", "answer"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("from", no_wrap=True)
        table.add_column("upstream")
        for each in found:
            of = each.window
            sizes = (f"{tokens:,}" if tokens else "" for tokens in (of.context, of.max_input, of.max_output))
            table.add_row(each.model, *sizes, SOURCES[of.source], each.upstream)
        Console().print(table)
    else:
        for each in found:
            of = each.window
            say_row((each.model, of.context, of.max_input or "", of.max_output or "", of.source, each.upstream))


def _show_json(found: Sequence[Sized]) -> None:
    """Print the windows as JSON, with the names of `GET /context/models`."""
    print_json(
        [
            {
                "id": each.model,
                "upstream": each.upstream,
                "context_window": each.window.context,
                "max_input_tokens": each.window.max_input,
                "max_output_tokens": each.window.max_output,
                "source": each.window.source,
                "note": each.window.note,
            }
            for each in found
        ]
    )
