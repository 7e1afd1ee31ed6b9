"""`steno doctor`, `steno models` and `steno plan`: report on the settings, without a running Steno.

The commands send no request to a provider except for its list of models.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx2
import msgspec
import typer
from pydantic import SecretStr

from app import __version__
from app.checks import Finding, check_database, check_settings, check_upstream, check_windows
from app.cli.command import Config, DatabaseURL, Upstream, WindowOption, at_window, fail, failing_on, settings_of
from app.compaction.budget import Window
from app.http.headers import new_instance
from app.main import create_app, open_providers
from app.providers.model_listings import ListingOutcome, ModelListing
from app.providers.providers import Provider, Providers
from app.settings import DEFAULT_UPSTREAM, ClientSettings, ConfigurationError, Settings
from app.settings.server import ServerSettings
from app.settings.storage import open_store, server_secret, tables_folder
from app.store import Store
from app.tokens.tokenizer import Tokenizer

_STATES = {"ok": "ok", "warning": "warning", "problem": "problem", "fatal": "problem"}
"""Printed state for each state of a finding. Only the verdict in the first line says that a problem is fatal."""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

cli = typer.Typer(rich_markup_mode="markdown")


@cli.command()
def doctor(upstream: Upstream = None, config: Config = None, database_url: DatabaseURL = None) -> None:
    """Check settings, providers, database, tokenizer tables and windows; exit 1 if something is wrong."""
    settings = settings_of(config, upstream={"base_url": upstream}, storage={"url": database_url})
    found = asyncio.run(examine(settings))
    show(found)
    sys.exit(not is_healthy(found))


async def examine(settings: Settings) -> list[Finding]:
    found = check_settings(settings, Tokenizer(tables_folder()).missing)
    no_database = any(finding.state == "fatal" and finding.subject == "database" for finding in found)
    secret = b"" if no_database else server_secret(settings, create=False)
    store = Store("memory") if no_database else open_store(settings, secret=secret)
    services: list[Finding] = []
    async with opened(settings, store) as providers:
        asked = [(provider, *await ask_for_models(provider)) for provider in providers.all]
        for provider, outcome, key_in in asked:
            services += (check_upstream(provider, outcome, key_in), *check_windows(provider, outcome))
        if not no_database:
            services.append(await check_database(store))
    return [*services, *found]


def is_healthy(found: Iterable[Finding]) -> bool:
    """True if there are no problems; warnings are allowed."""
    return not any(_STATES[finding.state] == "problem" for finding in found)


def show(found: Sequence[Finding]) -> None:
    typer.secho(verdict(found), fg="green" if is_healthy(found) else "red", bold=True)
    typer.echo("\nchecks")
    for finding in found:
        state = _STATES[finding.state]
        typer.secho(f"  {state:<8} {finding.subject}: {finding.text}", fg=_COLOURS[state], nl=False)
        typer.echo(f"\n{'':11}-> {finding.remedy}" if finding.remedy else "")


def verdict(found: Iterable[Finding]) -> str:
    states = [finding.state for finding in found]
    problems = sum(_STATES[state] == "problem" for state in states)
    if "fatal" in states:
        says = "does not start with these settings"
    else:
        says = "starts, but not all of it works" if problems else "starts and works"
    return f"Steno {__version__} {says} (problems: {problems}, warnings: {states.count('warning')})"


@asynccontextmanager
async def opened(settings: Settings, store: Store) -> AsyncIterator[Providers]:
    """Yield the providers, and close them and the store at the end."""
    providers = open_providers(settings, store, new_instance())
    try:
        yield providers
    finally:
        await providers.close()
        await store.close()


# Windows of models


@cli.command()
def models(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="These; otherwise all known.")] = None,
    upstream: Upstream = None,
    config: Config = None,
) -> None:
    """List context windows, and where each comes from."""
    found = asyncio.run(windows_of(settings_of(config, upstream={"base_url": upstream}), names or ()))
    if not found:
        asked = "No provider lists its models, and the settings name none. Ask for one: steno models gpt-4o"
        typer.echo(asked, err=True)
        return
    width = max(len(model) for model, _, _ in found)
    typer.echo(f"{'model':<{width}} {'window':>9} {'prompt':>9} {'answer':>7}  {'source':<8} upstream")
    for model, at, window in found:
        sizes = window.context, window.max_input, window.max_output
        context, prompt, answer = (f"{tokens:,}" if tokens else "" for tokens in sizes)
        typer.echo(f"{model:<{width}} {context:>9} {prompt:>9} {answer:>7}  {window.source:<8} {at}")


async def windows_of(settings: Settings, names: Sequence[str]) -> list[tuple[str, str, Window]]:
    """Return name, upstream and window of the named models, or of all known models if no name is given."""
    async with opened(settings, Store("memory")) as providers:
        found: list[tuple[str, str, Window]] = []
        for provider in providers.all:
            outcome, _ = await ask_for_models(provider)
            listed = set(outcome.models) if isinstance(outcome, ModelListing) else set()
            here = provider.windows.names() if not names else [name for name in names if name in listed]
            found += ((name, provider.name, provider.windows.window_of(name)) for name in here)
        default = providers.default
        seen = {model for model, _, _ in found}
        found += ((name, default.name, default.windows.window_of(name)) for name in names if name not in seen)
        return sorted(found, key=lambda each: each[:2])


async def ask_for_models(provider: Provider) -> tuple[ListingOutcome, str | None]:
    """Ask the provider for its models. Return the outcome, and the environment variable with the sent key, if any.

    OPENAI_API_KEY is used for the default upstream only.
    """
    variable = provider.settings.api_key_env or ("OPENAI_API_KEY" if provider.name == DEFAULT_UPSTREAM else None)
    key = os.environ.get(variable) if variable else None
    outcome = await provider.windows.listings.fetch([(b"authorization", f"Bearer {key}".encode())] if key else [])
    return outcome, variable if key else None


# Plans of requests


@cli.command()
def plan(
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="A request body as JSON; - reads standard input.")],
    written: Annotated[
        str | None, typer.Option("--as", help="Its format: chat_completions, messages, responses.")
    ] = None,
    window: WindowOption = None,
    upstream: Upstream = None,
    config: Config = None,
) -> None:
    """Print what Steno would do to a request, as `POST /context/plan` does. No provider gets the request, and no stored
    summary is used."""
    settings = settings_of(config, upstream={"base_url": upstream})
    try:
        request = msgspec.json.decode(file.read(), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        fail(f"The request must be a JSON object: {error}.")
    request["format"] = written or request.get("format") or ("responses" if "input" in request else "chat_completions")
    with failing_on(ConfigurationError):
        answer = asyncio.run(ask_for_plan(at_window(settings, window) if window else settings, request))
    if answer.status_code != 200:
        fail(answer.json()["error"]["message"])
    typer.echo(msgspec.json.format(answer.text))


async def ask_for_plan(settings: Settings, request: dict[str, Any]) -> httpx2.Response:
    """Send the request to an application in this process, with a database in memory."""
    in_memory = settings.storage.model_copy(update={"url": SecretStr("memory")})
    alone = {"storage": in_memory, "server": ServerSettings(), "clients": ClientSettings()}
    app = create_app(settings.model_copy(update=alone), reports=False)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client,
    ):
        return await client.post("/context/plan", json=request)
