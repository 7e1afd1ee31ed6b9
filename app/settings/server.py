"""Settings of the server: listeners, clients, limits, events, storage, logs and the inspector."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import quote

from pydantic import BeforeValidator, Field, IPvAnyNetwork, SecretStr, field_validator

from app.formats.sse import EventShape
from app.http.credentials import CREDENTIALS
from app.runtime.bounded import CACHE_BYTES
from app.settings.types import Seconds, Section, switch

_HOST = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._:\[\]-]*")
_LISTENER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

LARGEST_BODY = 100_000_000
SHORTEST_PASSWORD = 16


class ServerSettings(Section):
    """The address that Steno listens on, and the callers that it serves."""

    host: str = "127.0.0.1"
    """Address to listen on. The container image sets 0.0.0.0. Put TLS in front of any address but loopback."""
    port: int = Field(8080, ge=0, le=65_535)
    """Port to listen on; 0 lets the system choose, and the start-up line says which."""
    admin: str | None = None
    """Second address, for the operator alone, as `host:port`; null: there is only the address above.

    Only this address then serves the operator's inspector, `/metrics`, `/docs`, `/openapi.json` and the details of
    `/readyz`.
    """
    workers: int = Field(1, ge=1, le=64)
    """Processes that serve at the same address, 1 to 64; about one for each core.

    Steno [divides](workers.md) some limits among them. Each opens up to 15 connections to PostgreSQL.
    """
    allow_unauthenticated: Annotated[Literal["loopback", True, False], BeforeValidator(switch)] = "loopback"
    """Callers that Steno serves without credentials, as the tenant `anonymous`: this machine (loopback), all, or none.

    These callers share one tenant: each can read the summaries of all others. Behind a proxy on this machine that adds
    no header (nginx by default), every caller looks local: set `false`. `STENO_ALLOW_UNAUTHENTICATED` is a second name.
    """
    allowed_hosts: tuple[str, ...] = ()
    """Host names that Steno answers to, besides local names and addresses; `.example.com`: all below it, `*`: any.

    List the name that a proxy passes on, and in Kubernetes `steno.my-namespace`. Steno always answers to the name in
    `server.host`, names without a dot, and names that end in `.localhost`, `.local`, `.internal`, `.home.arpa`, `.test`
    or `.svc`. `*` lets any page on the web read a Steno that needs no key (DNS rebinding).
    """
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call Steno and read its stored data, such as `https://chat.example.com`; `*`: all.

    Pages of this machine and programs with their own scheme (`app:`, `capacitor:`, `file:`, `tauri:`, `vscode-file:`,
    `vscode-webview:`) may always call `/v1`, and nothing else. A listed page has the rights of a caller without a key.
    List browser extensions by id: `chrome-extension://abcdef`.
    """
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` and `Forwarded` name the caller's address.

    The proxy must set the header itself, and must not pass on a caller's header. Steno ignores `FORWARDED_ALLOW_IPS`.
    """
    drain_seconds: Seconds = 25.0
    """Seconds that a stopping server waits for open answers and unfinished summaries.

    Give the process ten more seconds before it is killed (`stop_grace_period` in Compose).
    """

    @field_validator("admin")
    @classmethod
    def _is_a_listener(cls, admin: str | None) -> str | None:
        if admin is None:
            return None
        if (found := _LISTENER.fullmatch(admin)) is None or int(found[2]) > 65_535:
            raise ValueError(f"{admin!r:.100} is no address; allowed is host:port, such as 127.0.0.1:9090")
        return admin

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name != "*" and not _HOST.fullmatch(name):
                raise ValueError(
                    f"{name!r:.100} is no host name; allowed are names without scheme and port, such as"
                    " steno.example.com, .example.com for all below it, and * for any"
                )
        return tuple(name.lower() for name in names)

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r:.100} is no origin; allowed are scheme, host and port without a path, such as"
                    " https://chat.example.com, and * for all"
                )
        return tuple(origin.lower() for origin in origins)


class LimitSettings(Section):
    """Bounds for one request, one tenant and one process."""

    body_bytes: int | None = Field(None, ge=1_000)
    """Largest chat request body; null means 100 MB.

    A larger body gets 413; a compressed body counts decompressed. While open bodies take four times this size, further
    requests get 503 with `retry-after`. The provider's own limit is 32 MB in Messages, else 50 MB (Bedrock 20 MB,
    Vertex 30 MB). Above 0.8 of it, Steno masks the oldest media and used tool results.
    """
    cache_bytes: int = Field(CACHE_BYTES, ge=1_000_000)
    """Memory for cached conversations; the least recently used ones leave first.

    A conversation takes about three times its bytes. More memory saves CPU if many long conversations are active
    ([sizing](operations.md#sizing)). Each worker gets an equal share.
    """
    connections: int = Field(1_000, ge=1)
    """Maximum number of open client connections.

    Above it, Steno closes the connection that was idle for longest. If none is idle, the new one gets 503. Each request
    needs a second connection, to the provider: the start raises its limit of open files, or logs a warning. Each worker
    gets an equal share.
    """

    receive_seconds: ClassVar[float] = 60.0
    """Seconds that a client has to send its headers, to send the body of a chat request or the next piece of another
    body, and to read a piece of an answer."""
    compactions_per_tenant: ClassVar[int] = 16
    """Maximum number of one tenant's conversations compacted at the same time, in all processes together."""

    @property
    def largest_body(self) -> int:
        return self.body_bytes or LARGEST_BODY

    @property
    def in_flight_bytes(self) -> int:
        """Maximum bytes of all chat request bodies in progress; above it, requests get 503 with `retry-after`."""
        return 4 * self.largest_body

    def of_each(self, workers: int) -> Self:
        """Return the limits of one worker: memory and connections are divided by the number of workers."""
        return self.model_copy(
            update={
                "cache_bytes": self.cache_bytes // workers,
                "connections": max(self.connections // workers, 1),
            }
        )


class InspectorSettings(Section):
    """Steno's own pages."""

    enabled: bool = True
    """Serve the [inspector's pages](inspector.md), at `/` and under `/ui`; if off, both are a 404."""
    password: SecretStr | None = Field(None, min_length=SHORTEST_PASSWORD)
    """The operator's password, of at least 16 characters, which shows every tenant; null: no page shows every tenant.

    Without it `steno serve` on a terminal and `steno run` make and print a password for this run. Another password ends
    all sessions. With `server.admin`, only that address takes the password.
    """


class LogSettings(Section):
    """[Log lines](logs.md)."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that Steno logs: debug, info, warning or error."""
    format: Literal["auto", "json", "text"] = "auto"
    """Shape of log lines on standard output; `auto` is text on a terminal and JSON anywhere else."""


_NO_NAMES = CREDENTIALS | {b"host", b"cookie", b"forwarded", b"x-forwarded-for", b"content-type", b"content-length"}
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")


class ClientSettings(Section):
    """[How Steno identifies a caller](security.md#who-a-caller-is). The default is the key that the caller sends."""

    header: str | None = None
    """Header in which a proxy in `server.trusted_proxies` names the caller, such as `x-forwarded-user`.

    A request with this header from any other address gets 401. The proxy must remove the header from callers' requests.
    If an upstream has `api_key_env`, every request needs the header ([who pays](security.md#who-pays)).
    """
    tenant: str | None = Field(None, min_length=1, max_length=200)
    """Name of one tenant for all callers, whatever key they send: each can read the stored data of the others.

    Use it for one person whose token changes, or for a team that shares everything.
    """

    @field_validator("header")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is None:
            return None
        if not _HEADER.fullmatch(name := name.lower()) or name.encode() in _NO_NAMES:
            raise ValueError(f"{name!r:.100} cannot be a header that says who calls, such as x-forwarded-user")
        return name


class IdentitySettings(Section):
    """Names of conversations: [how one is recognised](rest.md#names-of-conversations)."""

    ignore: tuple[re.Pattern[str], ...] = ()
    """Regular expressions of volatile text, such as an injected date. Steno omits such text from digests.

    Messages that differ only in such text count as the same. After a change of this setting, Steno no longer finds the
    summaries of conversations with such text.
    """


class EventSettings(Section):
    """Additions to answers."""

    stream: EventShape = "chunk"
    """Shape of compaction events on streams: chunk, start, comment or off.

    [Shapes](rest.md#shapes) has the frames of each shape. Every client accepts `chunk`; more clients show `start`. A
    client chooses with `x-context-events`.
    """
    body: bool = True
    """Add `context_status` and `context` to answers; the headers are always there."""


def home() -> Path:
    """Return Steno's own folder: `STENO_HOME`, or else `steno` in the user's data folder (XDG)."""
    if named := os.environ.get("STENO_HOME"):
        return Path(named).expanduser().absolute()
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # The XDG specification says to ignore relative paths.
        try:
            data = Path.home() / ".local" / "share"
        except RuntimeError:  # The user has no home directory. The check reports that the folder is not writable.
            data = Path("/.local/share")
    return data / "steno"


def tables_folder() -> Path:
    """Return the folder into which `steno tables` puts the tokenizer's tables."""
    return home() / "tables"


class StorageSettings(Section):
    """The database, and how long it keeps data."""

    url: SecretStr | None = None
    """PostgreSQL or SQLite URL, or `memory`; null means `steno.db` in Steno's folder. DATABASE_URL sets it, too.

    Write `postgresql://user:password@host/name` or `sqlite:///path/steno.db`. An absolute path has four slashes; a
    relative one starts at the working directory. In a password, write `@ : / ?` as `%40 %3A %2F %3F`. Set the URL by
    the environment: all users of the machine can see a command line. PostgreSQL needs `STENO_SECRET`. Behind PgBouncer
    in transaction mode add `?prepared_statement_cache_size=0`.

    Steno's folder is `$STENO_HOME`, else `$XDG_DATA_HOME/steno`, else `~/.local/share/steno`; `make run` and `make
    doctor` use `.run/` of the checkout. The secret of a SQLite file is `steno.secret` beside it: back up both.
    """
    timeout_seconds: Seconds = 0.25
    """Seconds that a request waits for one database call. Then Steno serves it without stored summaries.

    Time while the process itself is busy does not count.
    """
    retention_days: int | None = Field(30, ge=1, le=36_500)
    """Days without use after which Steno deletes stored data; null: never.

    For a conversation with its pins, masks and stored messages, its last request counts; for a summary, the last
    payload with it; for other records, their age.
    """
    messages: bool = False
    """Store the [history](archive.md) of each conversation's latest request as the client sent it, without secrets.

    Messages are plain text in the database, pictures and files too. If you switch this off again, stored messages stay
    until they are deleted or too old.
    """

    @property
    def address(self) -> str:
        """The URL of the database in use; it may hold a password."""
        return self.url.get_secret_value() if self.url else f"sqlite:///{quote(str(home() / 'steno.db'))}"
