"""The doctor: what is in force, whether it works, and what to do where it does not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import typer

from app import __version__
from app.commands.setting_lines import setting_lines
from app.headers.hops import new_instance
from app.main import open_providers, open_store
from app.providers.diagnosis import judge_upstream, suffix
from app.providers.discovery import ModelListing
from app.providers.providers import Provider
from app.settings import DEFAULT_UPSTREAM, Settings
from app.settings.checks import Finding, check_settings
from app.store import Check, Store, StoreUnavailable
from app.tokens.tokenizer import Tokenizer

MOST_NAMES = 8
_STATES = {"ok": "ok", "warning": "warning", "problem": "problem", "fatal": "problem"}
"""What is printed of a finding's state: the verdict says what keeps Steno from starting."""


async def examine(settings: Settings) -> bool:
    """Prints the report, the verdict first. Whether nothing is wrong; warnings are not."""
    found = check_settings(settings, Tokenizer(settings.tokenizer.folder).missing)
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


async def _ask(provider: Provider) -> tuple[Finding, ModelListing | None]:
    variable = _key_variable(provider)
    key = os.environ.get(variable) if variable else None
    told = await provider.windows.told([(b"authorization", f"Bearer {key}".encode())] if key else [])
    finding = await judge_upstream(provider, told, variable if key else None)
    return finding, told if isinstance(told, ModelListing) and told.models else None


def check_windows(provider: Provider, listing: ModelListing | None) -> Iterator[Finding]:
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


def judge_database(check: Check) -> Finding:
    """What a look at the database showed."""
    subject, current, newest = f"database {check.place}", check.current_revision, check.head_revision
    if check.place == "memory":
        return Finding("ok", "database", "in memory, for one process; summaries are lost when it ends")
    if check.unusable:
        return Finding("fatal", subject, str(check.reason), "Correct storage.url or DATABASE_URL, or what it names.")
    if check.is_new:
        return Finding("ok", subject, "is made at the first start")
    if not check.reachable:
        remedy = "Steno serves without it, un-compacted, and goes on trying; start it, or correct storage.url."
        return Finding("problem", subject, str(check.reason), remedy)
    if current == newest:
        return Finding("ok", subject, f"reachable, schema {current}")
    remedy = "`steno migrate`, or the next start."
    if current is None:
        return Finding("warning", subject, "reachable, has no tables yet", remedy)
    return Finding("warning", subject, f"schema {current}, newest is {newest}", remedy)


def _key_variable(provider: Provider) -> str | None:
    """Whose key it is asked with. That of the default one is shown to no other provider."""
    own = provider.settings.api_key_env
    return own or ("OPENAI_API_KEY" if provider.name == DEFAULT_UPSTREAM else None)


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + rest
