"""Checks of settings, upstreams and database. Each returns findings and changes nothing.

The start refuses fatal findings of `check_settings`, and logs other problems. `steno doctor` prints all findings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from app.errors import LoopDetected, StenoError, UpstreamUnreachable
from app.providers.model_listings import ListingOutcome, ListingRefused, ModelListing
from app.providers.providers import Provider
from app.settings import DEFAULT_UPSTREAM, Settings
from app.settings.storage import secret_beside
from app.settings.upstreams import is_loopback
from app.store import DatabaseUnusable, DatabaseURLError, Store, StoreUnavailable
from app.store.engine import read_url
from app.store.schema import MADE_WITH_ANOTHER, NEWEST, WAYS_OUT, obstacle

SHORTEST_SECRET = 16
POINT_AT_PROVIDER = "Make it the provider's address, such as https://api.openai.com/v1."
CORRECT_URL = "Correct storage.url, DATABASE_URL or STENO_HOME."
MAKE_ONE = "Make one with `openssl rand -hex 32`"


class Finding(Struct, frozen=True):
    state: Literal["ok", "warning", "problem", "fatal"]
    """`problem`: Steno starts, but not everything works; `fatal`: Steno does not start."""
    subject: str
    text: str
    remedy: str | None = None
    """Advice to the operator, if there is any."""

    @property
    def sentence(self) -> str:
        return f"{self.text.removesuffix('.')}. {self.remedy or ''}".rstrip()


# Settings


def check_settings(settings: Settings, missing_tables: Sequence[str]) -> list[Finding]:
    """Return findings about the database's address, the secret, the tokenizer tables, and the operator's keys."""
    tables = Finding("ok", "tokenizer tables", "found and verified")
    if missing_tables:
        text = f"{', '.join(missing_tables)} not found; tokens are estimated by bytes, and compaction starts earlier"
        remedy = "`steno tables` fetches them; or name their folder: TIKTOKEN_CACHE_DIR."
        tables = Finding("warning", "tokenizer tables", text, remedy)
    return [*_check_place(settings), check_secret(settings), tables, *_check_operators_keys(settings)]


def _check_place(settings: Settings) -> Iterator[Finding]:
    """Yield findings about the address of the database, without opening the database."""
    try:
        address = read_url(settings.storage.address)
    except DatabaseURLError as error:
        yield Finding("fatal", "database", str(error), CORRECT_URL)
        return
    if address.kind == "memory" and settings.server.workers > 1:
        text = f"A database in memory is one process' own, and server.workers is {settings.server.workers}"
        yield Finding("fatal", "database", text, "Name a file or a PostgreSQL, or leave server.workers at 1.")
    if address.path is not None and (why := obstacle(address.path)) is not None:
        text = f"The database {address.place} cannot be used: {why}"
        yield Finding("fatal", "database", text, CORRECT_URL)


def check_secret(settings: Settings) -> Finding:
    """Return a finding about the secret. A missing secret is created when Steno starts, not here."""
    if settings.secret is not None:
        length = len(settings.secret.get_secret_value().encode())
        if length < SHORTEST_SECRET:
            text = f"STENO_SECRET has {length} characters; at least {SHORTEST_SECRET} are needed"
            return Finding("fatal", "secret", text, f"{MAKE_ONE}.")
        return Finding("ok", "secret", "set; every replica needs the same one")
    try:
        address = read_url(settings.storage.address)
    except DatabaseURLError:
        return Finding("problem", "secret", "not set, and there is no database to keep one beside")
    if address.kind == "postgresql":
        text = "STENO_SECRET is not set; with a shared database all replicas need the same one"
        return Finding("fatal", "secret", text, f"{MAKE_ONE} and give it to every replica.")
    if address.path is None:
        return Finding("ok", "secret", "made anew at each start, as is the database in memory")
    return _check_secret_file(secret_beside(address.path), address.path)


def _check_secret_file(path: Path, database: Path) -> Finding:
    if not path.exists() and database.exists():
        text = f"{path} is missing, which belongs to the database beside it"
        return Finding("warning", "secret", text, "Put it back from its backup: without it nothing stored is found.")
    if not path.exists():
        return Finding("ok", "secret", f"is made at the first start, in {path}")
    if path.stat().st_mode & 0o077:
        return Finding("warning", "secret", f"{path} can be read by others", f"chmod 600 {path}")
    return Finding("ok", "secret", f"kept in {path}")


def _check_operators_keys(settings: Settings) -> Iterator[Finding]:
    """Yield findings about settings that let callers use the operator's key although no proxy identifies them."""
    server = settings.server
    if settings.operator_pays and "*" in server.allowed_origins:
        text = "server.allowed_origins lets every page of the web spend the key in api_key_env"
        yield Finding("fatal", "callers", text, "List the origins of your own pages there, in place of *.")
    if settings.clients.header is not None and any(network.prefixlen == 0 for network in server.trusted_proxies):
        text = "server.trusted_proxies holds every address, so that every caller names itself in clients.header"
        yield Finding("fatal", "callers", text, "List the addresses of your own proxies there.")
    if settings.clients.header is not None or not settings.operator_pays:
        return
    if not is_loopback(server.host):
        by = f"by all who reach {server.host}"
    elif server.trusted_proxies or server.allowed_hosts or server.allow_unauthenticated is True:
        by = "by callers from elsewhere: server.trusted_proxies, server.allowed_hosts or server.allow_unauthenticated"
        by = f"{by} says that there are some"
    else:
        return
    remedy = "Set clients.header and server.trusted_proxies, so that a proxy names each caller."
    yield Finding("fatal", "callers", f"The key in api_key_env would be spent {by}", remedy)


def install_command(extra: str) -> str:
    """Return the command that installs Steno with an extra. `steno` on the Python Package Index is another project."""
    return f"pip install 'PATH-OF-CHECKOUT-OR-WHEEL[{extra}]'"


# Upstreams


def check_upstream(provider: Provider, listed: ListingOutcome, key_in: str | None) -> Finding:
    """Check an upstream's settings by its list of models. Any answer shows that the provider is reachable.

    `key_in` names the environment variable with the key that Steno sent.
    """
    subject = f"upstream{suffix(provider)} {provider.settings.base_url}"
    section = "upstream" if provider.name == DEFAULT_UPSTREAM else f"upstreams.{provider.name}"
    address, found = f"{section}.base_url", "lists no models"
    match listed:
        case StenoError():
            why = f" ({listed.__cause__})" if listed.__cause__ and str(listed.__cause__) else ""
            what = listed.what if isinstance(listed, UpstreamUnreachable) else listed.message
            remedy = f"Check {address}, and that this machine may connect to it."
            return Finding("problem", subject, f"{what}{why}", remedy)
        case ModelListing(models=models) if models:
            return Finding("ok", subject, f"reachable, lists {len(models)} models")
        case ListingRefused(status=LoopDetected.status):
            text = f"leads back to a Steno that the request went through already ({listed.status})"
            return Finding("problem", subject, text, POINT_AT_PROVIDER)
        case ListingRefused(wants_key=True) if key_in is None:
            return Finding("ok", subject, f"reachable; without a key it does not list its models ({listed.status})")
        case ListingRefused(wants_key=True):
            return Finding(
                "warning", subject, f"reachable, but refuses the key in {key_in} ({listed.status})", "Check it."
            )
        case ListingRefused(status=200):
            text = "reachable, but has no list of models at /models (no JSON)"
            remedy = f"Check {address}: it is the API's address, with its path (most end in /v1), not a web site's."
            return Finding("problem", subject, text, remedy)
        case ListingRefused(status=404 | 405):
            found = f"has no list of models at /models ({listed.status})"
        case ListingRefused():
            text = f"reachable, but answers with status {listed.status}"
            return Finding("warning", subject, text, "Ask the provider.")
    remedy = f"Check the path of {address} (most end in /v1); some providers have no list of models."
    return Finding("warning", subject, f"reachable, but {found}", remedy)


def suffix(provider: Provider) -> str:
    """Return the upstream's name after a space, for the subject of a finding; empty for the default upstream."""
    return "" if provider.name == DEFAULT_UPSTREAM else f" {provider.name}"


def check_windows(provider: Provider, outcome: ListingOutcome) -> Iterator[Finding]:
    """Yield a warning for each window larger than the provider's value, and a warning if windows are guesses."""
    at, listing = suffix(provider), outcome if isinstance(outcome, ModelListing) and outcome.models else None
    windows = {name: provider.windows.window_of(name) for name in provider.windows.names(provider.windows.limits)}
    for name, window in windows.items():
        said = listing.of(name) if listing else None
        if said is not None and said.context < window.context:
            text = f"Steno takes {window.context:,} tokens ({window.source}), the provider says {said.context:,}"
            remedy = f'Lower it under models ({{match: "{name}", context_window: {said.context}}}), or leave it out.'
            yield Finding("warning", f"window of {name}{at}", text, remedy)
    if unknown := sum(window.source == "default" for window in windows.values()):
        text = f"{unknown} models are not known, and their windows a guess: `steno models` lists them"
        yield Finding("warning", f"windows{at}", text, "Name the smaller ones of them under models.")
    if listing is None:
        yield Finding("ok", f"windows{at}", "not asked for, because the provider lists no models")


# The database


async def check_database(store: Store) -> Finding:
    """Return a finding about the database, without changing the database."""
    place = store.database.address.place
    subject = f"database {place}"
    if place == "memory":
        return Finding("ok", "database", "in memory, for one process; summaries are lost when it ends")
    if store.is_new:
        return Finding("ok", subject, "is made at the first start")
    try:
        current, secret_fits = await store.revision(), await store.secret_fits()
    except DatabaseUnusable as error:
        is_missing = 'database "' in str(error) and "does not exist" in str(error)
        remedy = "Create the database (`createdb NAME`), or correct DATABASE_URL." if is_missing else CORRECT_URL
        return Finding("fatal", subject, str(error), remedy)
    except StoreUnavailable as error:
        remedy = "Start it, or correct storage.url. Meanwhile Steno serves without stored summaries, and keeps trying."
        return Finding("problem", subject, error.reason, remedy)
    if secret_fits is False:
        return Finding("fatal", subject, MADE_WITH_ANOTHER, WAYS_OUT)
    if current != NEWEST:
        text = "reachable, has no tables yet" if current is None else f"schema {current}, newest is {NEWEST}"
        return Finding("warning", subject, text, "`steno migrate`, or the next start.")
    if secret_fits is None:
        text = f"reachable, schema {current}; it does not know its secret yet, so another one would not be refused"
        return Finding("warning", subject, text, "Run `steno migrate` once, with the right secret.")
    return Finding("ok", subject, f"reachable, schema {current}")
