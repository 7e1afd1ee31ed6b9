"""The doctor: what is in force, whether it works, and what to do where it does not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import typer
from pydantic import SecretStr

from app import __version__
from app.headers.hops import new_instance
from app.main import open_providers, open_store
from app.providers.checks import Finding, check_settings, judge_database, judge_upstream, suffix
from app.providers.discovery import Listing
from app.providers.providers import Provider
from app.settings import (
    DEFAULT_UPSTREAM,
    ConfigurationError,
    Settings,
    environment_name,
    every_setting,
    kept_database,
    load,
    read_file,
)
from app.store import DatabaseURLError, Store, StoreUnavailable
from app.store.database import read_url
from app.tokens.tokenizer import Tokenizer

ALIASES = {
    "storage.url": "DATABASE_URL",
    "secret": "STENO_SECRET_FILE",
    "server.allow_unauthenticated": "STENO_ALLOW_UNAUTHENTICATED",
}
LONGEST_VALUE = 60
MOST_NAMES = 8
_STATES = {"ok": "ok", "warning": "warning", "problem": "problem", "fatal": "problem"}
"""What is printed of a finding's state: the verdict says what keeps Steno from starting."""


async def examine(settings: Settings) -> bool:
    """Prints the report, the verdict first. Whether nothing is wrong; warnings are not."""
    found = check_settings(settings, Tokenizer(settings.tokenizer.directory).missing)
    no_database = any(finding.state == "fatal" and finding.subject == "database" for finding in found)
    found = [*await check_services(settings, no_database=no_database), *found]
    typer.echo(verdict(found))
    typer.echo("\nchecks")
    for finding in found:
        typer.echo(f"  {_STATES[finding.state]:<8} {finding.subject}: {finding.text}")
        if finding.remedy:
            typer.echo(f"{'':11}-> {finding.remedy}")
    typer.echo("\nsettings in force (* differs from the default)")
    for line in setting_lines(settings):
        typer.echo(line)
    return not any(_STATES[finding.state] == "problem" for finding in found)


def verdict(found: Iterable[Finding]) -> str:
    """One line: whether Steno starts like this, and whether it works."""
    states = [finding.state for finding in found]
    problems = sum(_STATES[state] == "problem" for state in states)
    if "fatal" in states:
        says = "does not start like this"
    else:
        says = "starts, but not all of it works" if problems else "starts and works"
    return f"Steno {__version__} {says} (problems: {problems}, warnings: {states.count('warning')})"


def setting_lines(settings: Settings) -> Iterator[str]:
    """Each setting with its value and, where it is not the default, who set it."""
    defaults, unflagged = Settings.model_construct(), _without_flags()
    for key, _ in every_setting():
        value = _value(settings, key)
        if value == _value(defaults, key):
            yield f"    {key} = {_shown(key, value)}"
            continue
        flagged = unflagged is not None and _value(unflagged, key) != value
        yield f"  * {key} = {_shown(key, value)}   ({'command line' if flagged else _source(key)})"


async def check_services(settings: Settings, *, no_database: bool) -> list[Finding]:
    """Providers and windows, and the database where it is not known already that there is none."""
    store = Store.open("memory") if no_database else open_store(settings)
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


async def _ask(provider: Provider) -> tuple[Finding, Listing | None]:
    variable = _key_variable(provider)
    key = os.environ.get(variable) if variable else None
    told = await provider.windows.told([(b"authorization", f"Bearer {key}".encode())] if key else [])
    finding = await judge_upstream(provider, told, variable if key else None)
    return finding, told if isinstance(told, Listing) and told.models else None


def check_windows(provider: Provider, listing: Listing | None) -> Iterator[Finding]:
    """Every window by where it is from, and those that are larger than the provider says."""
    windows, at = provider.windows, suffix(provider)
    by_source: dict[str, list[str]] = {}
    for name in windows.names():
        window, said = windows.of(name), listing.of(name) if listing else None
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


def _key_variable(provider: Provider) -> str | None:
    """Whose key it is asked with. That of the default one is shown to no other provider."""
    own = provider.settings.api_key_env
    return own or ("OPENAI_API_KEY" if provider.name == DEFAULT_UPSTREAM else None)


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + rest


def _value(settings: Settings, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)


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
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _without_flags() -> Settings | None:
    """The settings as environment and file make them; None where they need a flag to be usable."""
    try:
        return load()
    except ConfigurationError:
        return None


def _source(key: str) -> str:
    """Who set a setting, among environment and file, in order of precedence."""
    environment = {name.upper(): value for name, value in os.environ.items()}
    if (name := environment_name(key)) in environment:
        return name
    section, _, rest = key.partition(".")
    if rest and _holds(environment.get(environment_name(section), ""), rest):
        return environment_name(section)
    if environment.get(ALIASES.get(key, "")):
        return ALIASES[key]
    file = environment.get("STENO_CONFIG")
    if key == "storage.url" and kept_database() and not (file and _holds_url(read_file(Path(file)))):
        return "the database of 0.1.0"
    return file or "command line"


def _holds_url(content: Mapping[str, Any]) -> bool:
    storage = content.get("storage")
    return isinstance(storage, dict) and "url" in storage


def _holds(section: str, key: str) -> bool:
    """Whether a variable that sets a whole section, as JSON, sets this key of it."""
    try:
        content = msgspec.json.decode(section)
    except msgspec.DecodeError:
        return False
    for name in key.split("."):
        if not isinstance(content, dict) or name not in content:
            return False
        content = content[name]
    return True
