"""`steno doctor`: whether Steno works with these settings, and what to do if it does not."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx2
import msgspec
import typer
from msgspec import Struct
from pydantic import SecretStr
from pydantic_settings import EnvSettingsSource

from app import __version__
from app.cli import ports
from app.cli.command import AsJson, Config, DatabaseURL, Upstream, commands, on_terminal, print_json, say, settings_of
from app.cli.models import ask_for_models
from app.cli.plan import asking
from app.http.headers import new_instance
from app.main import has_list_prices, open_providers, open_store
from app.providers.model_listings import ModelListing
from app.providers.providers import Provider, judge_upstream, suffix
from app.providers.registry import day_of_list_prices, days_since
from app.settings import ConfigurationError, Settings, environment_name, every_setting, load
from app.settings.checks import CORRECT_URL, SECRET_NOT_CHECKED, Finding, check_settings, existing_secret
from app.settings.server import tables_folder
from app.settings.settings import aliases, read_file
from app.store import Check, DatabaseURLError, Store, StoreError, StoreUnavailable
from app.store.engine import read_url
from app.store.schema import MADE_WITH_ANOTHER, WAYS_OUT
from app.tokens.tokenizer import Tokenizer

MOST_NAMES = 8
CHAT = "/v1/chat/completions", "OPENAI_API_KEY"
"""Path of a round trip, and the variable with its key."""
MESSAGES = "/v1/messages", "ANTHROPIC_API_KEY"
GEMINI = "/v1beta/models/{model}:generateContent", "GEMINI_API_KEY"
LONGEST_ANSWER = 16
LONGEST_VALUE = 60
_STATES = {"ok": "ok", "warning": "warning", "problem": "problem", "fatal": "problem"}
"""Printed state of a finding: the verdict says what keeps Steno from starting."""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

cli = commands()


@cli.command()
def doctor(
    upstream: Upstream = None,
    config: Config = None,
    database_url: DatabaseURL = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List all settings, each with its source.")] = False,
    round_trip: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Send a short request to this model, through Steno. It is billed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings, providers, database, tokenizer tables, windows and port; exit 1 if something is wrong.

    With --round-trip MODEL the key is taken from OPENAI_API_KEY, or from ANTHROPIC_API_KEY where the provider speaks
    Messages alone.
    """
    settings = settings_of(config, upstream={"base_url": upstream}, storage={"url": database_url})
    found = asyncio.run(examine(settings, round_trip))
    (show_json if as_json else show)(found, settings if verbose else None)
    if not is_healthy(found):
        sys.exit(1)


async def examine(settings: Settings, model: str | None = None) -> list[Finding]:
    """Return all findings. With `model`, a short request to it is sent through a Steno started for that."""
    found = check_settings(settings, Tokenizer(tables_folder()).missing)
    no_database = any(finding.state == "fatal" and finding.subject == "database" for finding in found)
    found = [
        *await check_services(settings, no_database=no_database),
        *found,
        *check_prices(settings),
        check_port(settings.server.host, settings.server.port),
        *check_admin(settings.server.admin),
    ]
    if model is not None:
        found.append(await asyncio.to_thread(round_trip, settings, model))
    return found


def is_healthy(found: Iterable[Finding]) -> bool:
    """True if nothing is wrong; warnings are allowed."""
    return not any(_STATES[finding.state] == "problem" for finding in found)


def show(found: Sequence[Finding], settings: Settings | None) -> None:
    say(verdict(found), fg="green" if is_healthy(found) else "red", bold=True)
    say("\nchecks")
    before_remedy = f"\n{'':11}-> " if on_terminal() else " -> "
    for finding in found:
        state = _STATES[finding.state]
        say(f"  {state:<8} {finding.subject}: {finding.text}", fg=_COLOURS[state], nl=False)
        say(f"{before_remedy}{finding.remedy}" if finding.remedy else "")
    if settings is not None:
        say("\nsettings in effect (* differs from the default)")
        for each in in_effect(settings):
            say(each.line)


def show_json(found: Sequence[Finding], settings: Settings | None) -> None:
    report = {
        "version": __version__,
        "starts": all(finding.state != "fatal" for finding in found),
        "works": is_healthy(found),
        "checks": [
            {"state": _STATES[each.state], "subject": each.subject, "text": each.text, "remedy": each.remedy}
            for each in found
        ],
    }
    print_json(report if settings is None else report | {"settings": list(in_effect(settings))})


def check_prices(settings: Settings) -> Iterator[Finding]:
    if has_list_prices(settings):
        day = day_of_list_prices()
        yield Finding("ok", "list prices", f"of {day.isoformat()}, {days_since(day)} days old")


def check_admin(named: str | None) -> Iterator[Finding]:
    if named is None:
        return
    if not named.startswith(ports.UNIX):
        yield check_port(*ports.host_and_port(named), setting="server.admin")
        return
    folder = Path(named.removeprefix(ports.UNIX)).parent
    if os.access(folder, os.W_OK | os.X_OK):
        yield Finding("ok", f"address {named}", "its folder can be written to")
    else:
        remedy = "Make its folder, or correct server.admin."
        yield Finding("problem", f"address {named}", "no socket file can be made there", remedy)


def check_port(host: str, port: int, setting: str = "server.host") -> Finding:
    subject = f"address {host}:{port}"
    try:
        ports.close(ports.take(host, port))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return Finding("problem", subject, f"cannot be listened on ({error.strerror})", f"Correct {setting}.")
        if ports.is_steno(host, port):
            return Finding("ok", subject, "in use by another Steno")
        remedy = f"Stop that, or set another {setting.replace('host', 'port')}."
        return Finding("problem", subject, "in use by another program", remedy)
    return Finding("ok", subject, "free")


def round_trip(settings: Settings, model: str) -> Finding:
    """Send a short request to the model, through a Steno with these settings. It is billed as any other."""
    subject, messages = f"round trip to {model}", [{"role": "user", "content": "Say OK."}]
    spoken = settings.upstream.speaks
    path, variable = CHAT if "chat_completions" in spoken else MESSAGES if "messages" in spoken else GEMINI
    key = os.environ.get(variable, "")
    body = {"model": model, "messages": messages} | ({} if path == CHAT[0] else {"max_tokens": LONGEST_ANSWER})
    headers = {"authorization": f"Bearer {key}"} if key else {}
    if path == GEMINI[0]:
        path, headers = path.replace("{model}", quote(model, safe="")), {"x-goog-api-key": key} if key else {}
        body = {"contents": [{"role": "user", "parts": [{"text": "Say OK."}]}]}
    begun = time.monotonic()
    try:
        with asking(settings) as client:
            answer = client.post(path, json=body, headers=headers)
    except (ConfigurationError, StoreError, RuntimeError) as error:
        return Finding("problem", subject, f"Steno did not start: {error}")
    except httpx2.HTTPError as error:
        return Finding("problem", subject, f"no answer ({type(error).__name__})", "Check the provider.")
    if answer.status_code != 200:
        with_key = f"with the key in {variable}" if key else f"without a key: {variable} is not set"
        remedy = "Check the key and the model's name." if key else f"Set {variable}."
        return Finding("problem", subject, f"the provider answered {answer.status_code} {with_key}", remedy)
    return Finding("ok", subject, f"answered in {time.monotonic() - begun:.1f} seconds, through Steno")


def verdict(found: Iterable[Finding]) -> str:
    states = [finding.state for finding in found]
    problems = sum(_STATES[state] == "problem" for state in states)
    if "fatal" in states:
        says = "does not start with these settings"
    else:
        says = "starts, but not all of it works" if problems else "starts and works"
    return f"Steno {__version__} {says} (problems: {problems}, warnings: {states.count('warning')})"


async def check_services(settings: Settings, *, no_database: bool) -> list[Finding]:
    """Report on providers and windows, and on the database unless it is known already that there is none."""
    store = Store("memory") if no_database else open_store(settings, secret=existing_secret(settings))
    providers = open_providers(settings, store, new_instance())
    try:
        asked = [(provider, await _ask(provider)) for provider in providers.all]
        check = await store.check()
        if check.reachable and check.current_revision == check.head_revision:
            with suppress(StoreUnavailable):
                for provider in providers.all:
                    await provider.windows.load()
        found = [
            finding
            for provider, (upstream, listing) in asked
            for finding in (upstream, *check_windows(provider, listing))
        ]
        return found if no_database else [*found, judge_database(check)]
    finally:
        await providers.close()
        await store.close()


async def _ask(provider: Provider) -> tuple[Finding, ModelListing | None]:
    listed, key_in = await ask_for_models(provider)
    finding = await judge_upstream(provider, listed, key_in)
    return finding, listed if isinstance(listed, ModelListing) and listed.models else None


def check_windows(provider: Provider, listing: ModelListing | None) -> Iterator[Finding]:
    """Report windows by their source, and those that are larger than the provider says."""
    windows, at = provider.windows, suffix(provider)
    by_source: dict[str, list[str]] = {}
    for name in windows.names():
        window, said = windows.window_of(name), listing.of(name) if listing else None
        by_source.setdefault(window.source, []).append(f"{name} {window.context:,}")
        if said is not None and said.context < window.context:
            text = f"Steno takes {window.context:,} tokens ({window.source}), the provider says {said.context:,}"
            remedy = f'Lower it under models ({{match: "{name}", context_window: {said.context}}}), or leave it out.'
            yield Finding("warning", f"window of {name}{at}", text, remedy)
    for source in ("config", "provider", "learnt", "bundled"):
        if source in by_source:
            yield Finding("ok", f"windows{at} ({source})", _listed(by_source[source]))
    if unknown := by_source.get("default"):
        text = f"{len(unknown)} models are not known, and their windows a guess: {_listed(unknown)}"
        yield Finding("warning", f"windows{at} (default)", text, "Name the smaller ones of them under models.")
    if listing is None:
        yield Finding("ok", f"windows{at}", "not asked for, because the provider lists no models")


def judge_database(check: Check) -> Finding:
    subject, current, newest = f"database {check.place}", check.current_revision, check.head_revision
    if check.place == "memory":
        return Finding("ok", "database", "in memory, for one process; summaries are lost when it ends")
    if check.secret_fits is False:
        return Finding("fatal", subject, MADE_WITH_ANOTHER, WAYS_OUT)
    if check.unusable:
        reason = str(check.reason)
        is_missing = 'database "' in reason and "does not exist" in reason
        remedy = "Create the database (`createdb NAME`), or correct DATABASE_URL." if is_missing else CORRECT_URL
        return Finding("fatal", subject, reason, remedy)
    if check.is_new:
        return Finding("ok", subject, "is made at the first start")
    if not check.reachable:
        remedy = (
            "Steno serves without it, but cannot store summaries, and keeps trying. Start it, or correct storage.url."
        )
        return Finding("problem", subject, str(check.reason), remedy)
    if current != newest:
        text = "reachable, has no tables yet" if current is None else f"schema {current}, newest is {newest}"
        return Finding("warning", subject, text, "`steno migrate`, or the next start.")
    if check.secret_fits is None:
        text = f"reachable, schema {current}; {SECRET_NOT_CHECKED.text}"
        return Finding("warning", subject, text, SECRET_NOT_CHECKED.remedy)
    return Finding("ok", subject, f"reachable, schema {current}")


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + rest


# Settings in effect

ALIASES = {
    "storage.url": "DATABASE_URL",
    "secret": "STENO_SECRET_FILE",
    "server.allow_unauthenticated": "STENO_ALLOW_UNAUTHENTICATED",
}


class InEffect(Struct, frozen=True):
    key: str
    value: str
    """The value as JSON, or in words where it is a secret or long."""
    source: str | None
    """Place where the value was set; None for a default."""

    @property
    def line(self) -> str:
        short = self.value if len(self.value) <= LONGEST_VALUE else f"{self.value[: LONGEST_VALUE - 3]}..."
        return f"    {self.key} = {short}" if self.source is None else f"  * {self.key} = {short}   ({self.source})"


def in_effect(settings: Settings) -> Iterator[InEffect]:
    """All settings; those that differ from the default with where they were set."""
    defaults, unflagged = Settings.model_construct(), None
    with suppress(ConfigurationError):  # Raised where a flag is needed.
        unflagged = load()
    file = os.environ.get("STENO_CONFIG")
    environment, others, content = EnvSettingsSource(Settings)(), aliases(), read_file(Path(file)) if file else {}
    for key, _ in every_setting():
        value, source = _value(settings, key), None
        if value != _value(defaults, key):
            if unflagged is not None and _value(unflagged, key) != value:
                source = "command line"
            elif _holds(environment, key):
                is_single = environment_name(key) in map(str.upper, os.environ)
                source = environment_name(key if is_single else key.partition(".")[0])
            elif _holds(others, key):
                source = ALIASES[key]
            elif _holds(content, key):
                source = file
            else:
                source = f"preset {settings.compaction.preset}" if unflagged is not None else "command line"
        yield InEffect(key, _shown(key, value), source)


def _value(settings: Settings, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)


def _holds(content: Any, key: str) -> bool:
    name, _, rest = key.partition(".")
    return isinstance(content, Mapping) and name in content and (not rest or _holds(content[name], rest))


def _shown(key: str, value: Any) -> str:
    if key == "secret":
        return "null" if value is None else "(hidden)"
    if isinstance(value, SecretStr):
        try:
            return read_url(value.get_secret_value()).shown
        except DatabaseURLError:
            return "(hidden: cannot be read)"
    if key in ("models", "upstreams"):
        return f"{len(value)} entries"
    return msgspec.json.encode(value, enc_hook=str).decode()
