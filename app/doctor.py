"""The doctor: what is in force, whether it works, and what to do where it does not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer
from pydantic import SecretStr

from app import __version__
from app.discovery import Listing, ListingRefused
from app.errors import StenoError
from app.main import SHORTEST_SECRET, open_providers, open_store, secret_beside
from app.providers import Provider
from app.settings import DEFAULT_UPSTREAM, ConfigurationError, Settings, environment_name, every_setting, load
from app.store import Check, DatabaseURLError, Store, StoreUnavailable
from app.store.database import read_url
from app.tokenizer import Tokenizer

ALIASES = {
    "storage.url": "DATABASE_URL",
    "secret": "STENO_SECRET_FILE",
    "server.allow_unauthenticated": "STENO_ALLOW_UNAUTHENTICATED",
}
LONGEST_VALUE = 60
MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Finding:
    state: Literal["ok", "warning", "problem"]
    subject: str
    text: str
    remedy: str | None = None
    """What to do about it."""


async def examine(settings: Settings) -> bool:
    """Prints the report. Whether nothing is wrong; warnings are not."""
    typer.echo(f"Steno {__version__}\n\nsettings in force (* differs from the default)")
    for line in setting_lines(settings):
        typer.echo(line)
    typer.echo("\nchecks")
    found = [*await check_services(settings), check_secret(settings), check_tables(settings)]
    for finding in found:
        typer.echo(f"  {finding.state:<8} {finding.subject}: {finding.text}")
        if finding.remedy:
            typer.echo(f"{'':11}-> {finding.remedy}")
    states = [finding.state for finding in found]
    typer.echo(f"\nproblems: {states.count('problem')}, warnings: {states.count('warning')}")
    return "problem" not in states


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


async def check_services(settings: Settings) -> list[Finding]:
    """Providers, windows and database."""
    try:
        store = open_store(settings)
        unreadable = None
    except DatabaseURLError as error:
        store = Store.open("memory")
        unreadable = Finding("problem", "database", str(error), "Correct storage.url or DATABASE_URL.")
    providers = open_providers(settings, store)
    try:
        asked = [(provider, *await check_upstream(provider)) for provider in providers.all]
        database, readable = (unreadable, False) if unreadable else await check_database(settings, store)
        if readable:
            with suppress(StoreUnavailable):
                for provider in providers.all:
                    await provider.windows.load()
        found = ((upstream, *check_windows(provider, listing)) for provider, upstream, listing in asked)
        return [*chain.from_iterable(found), database]
    finally:
        await providers.close()
        await store.close()


async def check_upstream(provider: Provider) -> tuple[Finding, Listing | None]:
    """Any answer shows that the provider is there; only some tell its models."""
    subject, address = f"upstream{_at(provider)} {provider.settings.base_url}", f"{_section(provider)}.base_url"
    variable = _key_variable(provider)
    key = os.environ.get(variable) if variable else None
    try:
        listing = await provider.windows.discover([(b"authorization", f"Bearer {key}".encode())] if key else [])
    except StenoError as error:
        why = f" ({error.__cause__})" if error.__cause__ and str(error.__cause__) else ""
        remedy = f"Check {address}, and that this machine may connect to it."
        return Finding("problem", subject, f"{error.message}{why}", remedy), None
    except ListingRefused as error:
        return _refused(subject, address, error, variable if key else None), None
    if not listing.models:
        remedy = f"Check that {address} is the API's address, with its path (most end in /v1)."
        return Finding("warning", subject, "reachable, but lists no models", remedy), None
    return Finding("ok", subject, f"reachable, lists {len(listing.models)} models"), listing


def check_windows(provider: Provider, listing: Listing | None) -> Iterator[Finding]:
    """Every window by where it is from, and those that are larger than the provider says."""
    windows, at = provider.windows, _at(provider)
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


async def check_database(settings: Settings, store: Store) -> tuple[Finding, bool]:
    """Whether it can be read, too."""
    check = await store.check()
    readable = check.reachable and check.current_revision == check.head_revision
    address = read_url(settings.storage.url.get_secret_value())
    if address.kind == "memory":
        return Finding("ok", "database", "in memory, for one process; summaries are lost when it ends"), False
    if address.path is not None and not address.path.exists():
        return _new_file(address.path), False
    return _schema(check), readable


def check_secret(settings: Settings) -> Finding:
    """Looks only: `serve` makes the secret of a SQLite file."""
    if settings.secret is not None:
        length = len(settings.secret.get_secret_value().encode())
        if length < SHORTEST_SECRET:
            remedy = "Make one with `openssl rand -hex 32`."
            return Finding("problem", "secret", f"{length} characters; {SHORTEST_SECRET} are needed", remedy)
        return Finding("ok", "secret", "set; every replica needs the same one")
    try:
        address = read_url(settings.storage.url.get_secret_value())
    except DatabaseURLError:
        return Finding("problem", "secret", "not set, and there is no database to keep one beside")
    if address.kind == "postgresql":
        remedy = "Make one with `openssl rand -hex 32` and give it to every replica."
        return Finding("problem", "secret", "STENO_SECRET is not set; PostgreSQL needs it", remedy)
    if address.path is None:
        return Finding("ok", "secret", "made anew at each start, as is the database in memory")
    path = secret_beside(address.path)
    if not path.exists():
        return Finding("ok", "secret", f"is made at the first start, in {path}")
    if path.stat().st_mode & 0o077:
        return Finding("warning", "secret", f"{path} can be read by others", f"chmod 600 {path}")
    return Finding("ok", "secret", f"kept in {path}")


def check_tables(settings: Settings) -> Finding:
    missing = Tokenizer(settings.tokenizer.directory).missing
    if not missing:
        return Finding("ok", "tokenizer tables", "found and verified")
    remedy = "`python scripts/fetch_tables.py .tables` fetches them; or name their folder: tokenizer.directory."
    text = f"{', '.join(missing)} not found; tokens are estimated by bytes, and compaction starts earlier"
    return Finding("problem" if settings.tokenizer.required else "warning", "tokenizer tables", text, remedy)


def _section(provider: Provider) -> str:
    """Where it stands in the settings."""
    return "upstream" if provider.name == DEFAULT_UPSTREAM else f"upstreams.{provider.name}"


def _at(provider: Provider) -> str:
    """What tells its findings from those of the default one."""
    return "" if provider.name == DEFAULT_UPSTREAM else f" {provider.name}"


def _key_variable(provider: Provider) -> str | None:
    """Whose key it is asked with. That of the default one is shown to no other provider."""
    own = provider.settings.api_key_env
    return own or ("OPENAI_API_KEY" if provider.name == DEFAULT_UPSTREAM else None)


def _refused(subject: str, address: str, error: ListingRefused, variable: str | None) -> Finding:
    """`variable` held the key that was sent, if one was."""
    status = error.status
    if error.wants_key and variable is None:
        return Finding("ok", subject, f"reachable; without a key it does not list its models ({status})")
    if error.wants_key:
        return Finding("warning", subject, f"reachable, but refuses the key in {variable} ({status})", "Check it.")
    if status == 404:
        remedy = f"Check the path of {address} (most end in /v1); some providers have no list of models."
        return Finding("warning", subject, "reachable, but has nothing at /models (404)", remedy)
    return Finding("warning", subject, f"reachable, but answers with status {status}", "Ask the provider.")


def _new_file(path: Path) -> Finding:
    folder = path.parent
    if folder.is_dir() and os.access(folder, os.W_OK):
        return Finding("ok", "database", f"{path} is made at the first start")
    why = "cannot be written" if folder.is_dir() else "does not exist"
    return Finding("problem", "database", f"the folder {folder.absolute()} {why}", "Make it, or choose another.")


def _schema(check: Check) -> Finding:
    subject, current, newest = f"database {check.place}", check.current_revision, check.head_revision
    if not check.reachable:
        remedy = "Steno serves without it, un-compacted, and goes on trying; start it, or correct storage.url."
        return Finding("problem", subject, str(check.reason), remedy)
    if current == newest:
        return Finding("ok", subject, f"reachable, schema {current}")
    if current is None:
        return Finding("warning", subject, "reachable, has no tables yet", "`steno migrate`, or the next start.")
    if current > newest:  # Revisions are numbers of equal length.
        remedy = "Start the release that migrated it, or a newer one."
        return Finding("problem", subject, f"schema {current} is newer than this release ({newest})", remedy)
    return Finding("warning", subject, f"schema {current}, newest is {newest}", "`steno migrate`, or the next start.")


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
    return environment.get("STENO_CONFIG") or "command line"


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
