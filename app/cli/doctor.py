"""`steno doctor`: checks whether Steno works with the settings, and prints remedies for problems."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import Annotated, Any

import msgspec
import typer
from pydantic import SecretStr

from app import __version__
from app.cli import ports
from app.cli.command import AsJson, Config, DatabaseURL, Upstream, commands, print_json, say, settings_of
from app.cli.models import ask_for_models
from app.http.headers import new_instance
from app.main import open_providers
from app.providers.model_listings import ModelListing
from app.providers.providers import Provider, judge_upstream, suffix
from app.providers.registry import day_of_list_prices, days_since
from app.settings import Settings, every_setting
from app.settings.checks import CORRECT_URL, SECRET_NOT_CHECKED, Finding, check_settings, existing_secret, open_store
from app.settings.server import tables_folder
from app.store import Check, DatabaseURLError, Store, StoreUnavailable
from app.store.engine import read_url
from app.store.schema import MADE_WITH_ANOTHER, WAYS_OUT
from app.tokens.tokenizer import Tokenizer

MOST_NAMES = 8
LONGEST_VALUE = 60
_STATES = {"ok": "ok", "warning": "warning", "problem": "problem", "fatal": "problem"}
"""Printed states, by the state of a finding. Only the verdict distinguishes fatal problems."""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

cli = commands()


@cli.command()
def doctor(
    upstream: Upstream = None,
    config: Config = None,
    database_url: DatabaseURL = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="List all settings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check settings, providers, database, tokenizer tables, windows and port; exit 1 if something is wrong."""
    settings = settings_of(config, upstream={"base_url": upstream}, storage={"url": database_url})
    found = asyncio.run(examine(settings))
    (show_json if as_json else show)(found, settings if verbose else None)
    sys.exit(not is_healthy(found))


async def examine(settings: Settings) -> list[Finding]:
    found = check_settings(settings, Tokenizer(tables_folder()).missing)
    no_database = any(finding.state == "fatal" and finding.subject == "database" for finding in found)
    found = [*await check_services(settings, no_database=no_database), *found]
    if settings.prices == ():
        day = day_of_list_prices()
        found.append(Finding("ok", "list prices", f"of {day.isoformat()}, {days_since(day)} days old"))
    found.append(check_port(settings.server.host, settings.server.port))
    if settings.server.admin is not None:
        found.append(check_port(*ports.host_and_port(settings.server.admin), setting="server.admin"))
    return found


def is_healthy(found: Iterable[Finding]) -> bool:
    """True if there are no problems; warnings are allowed."""
    return not any(_STATES[finding.state] == "problem" for finding in found)


def show(found: Sequence[Finding], settings: Settings | None) -> None:
    say(verdict(found), fg="green" if is_healthy(found) else "red", bold=True)
    say("\nchecks")
    for finding in found:
        state = _STATES[finding.state]
        say(f"  {state:<8} {finding.subject}: {finding.text}", fg=_COLOURS[state], nl=False)
        say(f"\n{'':11}-> {finding.remedy}" if finding.remedy else "")
    if settings is not None:
        say("\nsettings in effect (* differs from the default)")
        for each in in_effect(settings):
            say(f"  {' ' if each['is_default'] else '*'} {each['key']} = {each['value']:.{LONGEST_VALUE}}")


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


def verdict(found: Iterable[Finding]) -> str:
    states = [finding.state for finding in found]
    problems = sum(_STATES[state] == "problem" for state in states)
    if "fatal" in states:
        says = "does not start with these settings"
    else:
        says = "starts, but not all of it works" if problems else "starts and works"
    return f"Steno {__version__} {says} (problems: {problems}, warnings: {states.count('warning')})"


async def check_services(settings: Settings, *, no_database: bool) -> list[Finding]:
    """Report on providers and windows, and on the database. `no_database`: leave the database out."""
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
    """Report the windows by source, with a warning for each window larger than the provider's own value."""
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


def in_effect(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield each setting with its value, or a description if it is secret or long, and whether it is the default."""
    defaults = Settings.model_construct()
    for key, _ in every_setting():
        value, default = (reduce(getattr, key.split("."), each) for each in (settings, defaults))
        yield {"key": key, "value": _shown(key, value), "is_default": value == default}


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
