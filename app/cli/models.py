"""`steno models`: lists the context windows that Steno uses, with their sources."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from app.cli.command import AsJson, Config, Upstream, commands, print_json, say, settings_of
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
"""Printed names of the sources of a window."""

Sized = tuple[str, str, Window]
"""Model, upstream and window."""

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
    found = asyncio.run(windows_of(settings, names or ()))
    if as_json:  # With the names of `GET /context/models`.
        print_json(
            [
                {
                    "id": model,
                    "upstream": at,
                    "context_window": window.context,
                    "max_input_tokens": window.max_input,
                    "max_output_tokens": window.max_output,
                    "source": window.source,
                    "note": window.note,
                }
                for model, at, window in found
            ]
        )
    elif not found:
        asked = "No provider lists its models, and the settings name none. Ask for one: steno models gpt-4o"
        say(asked, file=sys.stderr)
    else:
        width = max(len(model) for model, _, _ in found)
        say(f"{'model':<{width}} {'window':>9} {'prompt':>9} {'answer':>7}  {'from':<13} upstream")
        for model, at, window in found:
            sizes = window.context, window.max_input, window.max_output
            context, prompt, answer = (f"{tokens:,}" if tokens else "" for tokens in sizes)
            say(f"{model:<{width}} {context:>9} {prompt:>9} {answer:>7}  {SOURCES[window.source]:<13} {at}")


async def ask_for_models(provider: Provider) -> tuple[ListingOutcome, str | None]:
    """Ask the provider for its models. Return its answer, and the environment variable of the used key.

    OPENAI_API_KEY is used for the default upstream only.
    """
    variable = provider.settings.api_key_env or ("OPENAI_API_KEY" if provider.name == DEFAULT_UPSTREAM else None)
    key = os.environ.get(variable) if variable else None
    outcome = await provider.windows.listings.fetch([(b"authorization", f"Bearer {key}".encode())] if key else [])
    return outcome, variable if key else None


async def windows_of(settings: Settings, names: Sequence[str]) -> list[Sized]:
    """Return the windows of these models at their upstreams; without names, of all known models."""
    store = Store("memory")
    providers = open_providers(settings, store, new_instance())
    try:
        found: list[Sized] = []
        for provider in providers.all:
            outcome, _ = await ask_for_models(provider)
            listed = set(outcome.models) if isinstance(outcome, ModelListing) else set()
            here = provider.windows.names() if not names else [name for name in names if name in listed]
            found += ((name, provider.name, provider.windows.window_of(name)) for name in here)
        default = providers.default
        seen = {model for model, _, _ in found}
        found += ((name, default.name, default.windows.window_of(name)) for name in names if name not in seen)
        return sorted(found, key=lambda each: each[:2])
    finally:
        await providers.close()
        await store.close()
