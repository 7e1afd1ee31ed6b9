"""Checks: what is wrong with the settings, the database and the providers. `doctor` prints what `serve` goes by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.errors import LoopDetected, StenoError
from app.providers.discovery import Listing, ListingRefused
from app.providers.providers import Provider
from app.providers.windows import Told
from app.settings import DATABASE, DEFAULT_UPSTREAM, EARLIER_DATABASE, Settings
from app.store import Check, DatabaseURLError
from app.store.database import Address, read_url
from app.store.files import obstacle

SHORTEST_SECRET = 16
POINT_AT_PROVIDER = "Make it the provider's address, such as https://api.openai.com/v1."
MAKE_ONE = "Make one with `openssl rand -hex 32`"


@dataclass(frozen=True, slots=True)
class Finding:
    state: Literal["ok", "warning", "problem", "fatal"]
    """`problem`: Steno starts, but not all of it works; `fatal`: it does not start."""
    subject: str
    text: str
    remedy: str | None = None
    """What to do about it."""

    @property
    def sentence(self) -> str:
        """Without its subject."""
        return f"{self.text.removesuffix('.')}. {self.remedy or ''}".rstrip()


def check_settings(settings: Settings, missing_tables: Sequence[str]) -> list[Finding]:
    """What can be told without asking anybody: the database's place, the secret, the tokenizer tables, circles."""
    tables = _check_tables(", ".join(missing_tables), required=settings.tokenizer.required)
    return [*_check_place(settings), _check_secret(settings), tables, *_check_circular(settings)]


def address_of(settings: Settings) -> Address | None:
    """Where the database is; None where its URL cannot be read."""
    try:
        return read_url(settings.storage.url.get_secret_value())
    except DatabaseURLError:
        return None


def secret_beside(database: Path) -> Path:
    """Where the secret of a SQLite file is kept."""
    return database.with_suffix(".secret")


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


async def judge_upstream(provider: Provider, told: Told, key_in: str | None) -> Finding:
    """Any answer shows that the provider is there; only some tell its models.

    `key_in` is the variable whose key it was asked with. An API that is not at the base URL is looked for.
    """
    subject, address = f"upstream{suffix(provider)} {provider.settings.base_url}", f"{_section(provider)}.base_url"
    if isinstance(told, StenoError):
        why = f" ({told.__cause__})" if told.__cause__ and str(told.__cause__) else ""
        remedy = f"Check {address}, and that this machine may connect to it."
        return Finding("problem", subject, f"{told.message}{why}", remedy)
    if isinstance(told, Listing) and told.models:
        return Finding("ok", subject, f"reachable, lists {len(told.models)} models")
    if isinstance(told, ListingRefused) and told.status == LoopDetected.status:
        text = f"leads back to a Steno that the request went through already ({told.status})"
        return Finding("problem", subject, text, POINT_AT_PROVIDER)
    if isinstance(told, ListingRefused) and told.wants_key:
        return _judge_key(subject, told, key_in)
    if isinstance(told, ListingRefused) and told.status not in (200, 404, 405):
        return Finding("warning", subject, f"reachable, but answers with status {told.status}", "Ask the provider.")
    found = "lists no models"
    if isinstance(told, ListingRefused):
        found = f"has no list of models at /models ({'no JSON' if told.status == 200 else told.status})"
    if (elsewhere := await provider.windows.look_elsewhere()) is not None:
        return Finding(
            "problem", subject, f"{found}, but there is one at {elsewhere}", f"Set {address} to {elsewhere}."
        )
    if isinstance(told, ListingRefused) and told.status == 200:
        remedy = f"Check {address}: it is the API's address, with its path (most end in /v1), not a web site's."
        return Finding("problem", subject, f"reachable, but {found}", remedy)
    remedy = f"Check the path of {address} (most end in /v1); some providers have no list of models."
    return Finding("warning", subject, f"reachable, but {found}", remedy)


def suffix(provider: Provider) -> str:
    """What tells its findings from those of the default one."""
    return "" if provider.name == DEFAULT_UPSTREAM else f" {provider.name}"


def _check_place(settings: Settings) -> Iterator[Finding]:
    """Where there is something to say: the rest is seen when the database is opened."""
    try:
        address = read_url(settings.storage.url.get_secret_value())
    except DatabaseURLError as error:
        yield Finding("fatal", "database", str(error), "Correct storage.url or DATABASE_URL.")
        return
    if address.path is None:
        return
    if (why := obstacle(address.path)) is not None:
        text = f"The database {address.place} cannot be used: {why}"
        yield Finding("fatal", "database", text, "Correct storage.url or DATABASE_URL.")
    if address.path == DATABASE and EARLIER_DATABASE.is_file():
        text = f"{EARLIER_DATABASE.absolute()}, where 0.1.0 kept its data, is not used beside {address.place}"
        yield Finding("warning", "database", text, f"Move it away, or set DATABASE_URL=sqlite:///{EARLIER_DATABASE}.")


def _check_secret(settings: Settings) -> Finding:
    """Looks only: the start makes the secret of a SQLite file."""
    if settings.secret is not None:
        length = len(settings.secret.get_secret_value().encode())
        if length < SHORTEST_SECRET:
            text = f"STENO_SECRET has {length} characters; at least {SHORTEST_SECRET} are needed"
            return Finding("fatal", "secret", text, f"{MAKE_ONE}.")
        return Finding("ok", "secret", "set; every replica needs the same one")
    address = address_of(settings)
    if address is None:
        return Finding("problem", "secret", "not set, and there is no database to keep one beside")
    if address.kind == "postgresql":
        text = "STENO_SECRET is not set; with a shared database all replicas need the same one"
        return Finding("fatal", "secret", text, f"{MAKE_ONE} and give it to every replica.")
    if address.path is None:
        return Finding("ok", "secret", "made anew at each start, as is the database in memory")
    path = secret_beside(address.path)
    if not path.exists():
        return Finding("ok", "secret", f"is made at the first start, in {path}")
    if path.stat().st_mode & 0o077:
        return Finding("warning", "secret", f"{path} can be read by others", f"chmod 600 {path}")
    return Finding("ok", "secret", f"kept in {path}")


def _check_circular(settings: Settings) -> Iterator[Finding]:
    at = f"{settings.server.host}:{settings.server.port}"
    for section in settings.circular:
        yield Finding("fatal", "upstream", f"{section}.base_url is Steno's own address ({at})", POINT_AT_PROVIDER)


def _check_tables(missing: str, *, required: bool) -> Finding:
    if not missing:
        return Finding("ok", "tokenizer tables", "found and verified")
    remedy = "`python scripts/fetch_tables.py .tables` fetches them; or name their folder: tokenizer.directory."
    if required:
        text = f"The tokenizer tables {missing} were not found, and tokenizer.required is set"
        return Finding("fatal", "tokenizer tables", text, remedy)
    text = f"{missing} not found; tokens are estimated by bytes, and compaction starts earlier"
    return Finding("warning", "tokenizer tables", text, remedy)


def _judge_key(subject: str, told: ListingRefused, key_in: str | None) -> Finding:
    if key_in is None:
        return Finding("ok", subject, f"reachable; without a key it does not list its models ({told.status})")
    return Finding("warning", subject, f"reachable, but refuses the key in {key_in} ({told.status})", "Check it.")


def _section(provider: Provider) -> str:
    """Where it stands in the settings."""
    return "upstream" if provider.name == DEFAULT_UPSTREAM else f"upstreams.{provider.name}"
