"""Settings of the server: listeners, clients, limits, events, logs and the inspector."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, IPvAnyNetwork, SecretStr, StringConstraints, field_validator

from app.formats.compaction_events import EventShape
from app.http.credentials import CREDENTIALS
from app.runtime.caches import CACHE_BYTES
from app.settings.types import Seconds, Section

HostName = Annotated[str, StringConstraints(to_lower=True, pattern=r"^(\*|\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*)$")]
Origin = Annotated[
    str, StringConstraints(to_lower=True, pattern=r"^(\*|[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._:\[\]-]*)$")
]
_LISTENER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

LARGEST_BODY = 100_000_000
SHORTEST_PASSWORD = 16


class ServerSettings(Section):
    """The address that Steno listens on, and the callers that it serves."""

    host: str = "127.0.0.1"
    """Address to listen on. The container image sets 0.0.0.0. Put TLS in front of any address but loopback."""
    port: int = Field(8080, ge=0, le=65_535)
    """Port to listen on. 0: the system chooses a free port, which Steno prints at the start."""
    admin: str | None = None
    """Second address to listen on, as `host:port`, for the operator alone; null: no second address.

    If it is set, only this address serves the operator's inspector, `/metrics`, `/docs`, `/openapi.json` and the
    details of `/readyz`.
    """
    workers: int = Field(1, ge=1, le=64)
    """Number of processes that serve the address, 1 to 64. Set about one per core.

    Steno [divides](workers.md) some limits among the processes. Each process opens up to 15 connections to PostgreSQL.
    """
    allow_unauthenticated: Literal["loopback"] | bool = "loopback"
    """Callers that need no credentials: those on this machine (`loopback`), all (`true`) or none (`false`).

    Callers without a key share the tenant `anonymous`, and can read each other's summaries. If a proxy on this machine
    adds no header (nginx by default), its callers look local: set `false`. `STENO_ALLOW_UNAUTHENTICATED` is an alias.
    """
    allowed_hosts: tuple[HostName, ...] = ()
    """Accepted host names, besides all IP addresses and local names. `.example.com`: all names below it; `*`: all.

    List the host name that a proxy passes on, and in Kubernetes `steno.my-namespace`. Steno always accepts the name in
    `server.host`, names without a dot, and names that end in `.localhost`, `.local`, `.internal`, `.home.arpa`, `.test`
    or `.svc`. With `*`, any web page can read the data of callers without a key (DNS rebinding).
    """
    allowed_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may call Steno and read its stored data, such as `https://chat.example.com`; `*`: all.

    Pages of this machine and programs with their own scheme (`app:`, `capacitor:`, `file:`, `tauri:`, `vscode-file:`,
    `vscode-webview:`) may always call `/v1`, but no other path. A listed page has the rights of a caller without a key.
    List browser extensions by id: `chrome-extension://abcdef`.
    """
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses or networks of proxies. Steno reads the caller's address from their `X-Forwarded-For` or `Forwarded`.

    Each proxy must set one of these headers, and remove a caller's header. Steno ignores `FORWARDED_ALLOW_IPS`.
    """
    drain_seconds: Seconds = 25.0
    """Seconds that a stopping server waits for open answers and unfinished summaries.

    Let your process manager wait ten seconds longer before it kills Steno (`stop_grace_period` in Compose).
    """

    @field_validator("admin")
    @classmethod
    def _is_a_listener(cls, admin: str | None) -> str | None:
        if admin is None:
            return None
        if (found := _LISTENER.fullmatch(admin)) is None or int(found[2]) > 65_535:
            raise ValueError(f"{admin!r:.100} is no address; allowed is host:port, such as 127.0.0.1:9090")
        return admin


class LimitSettings(Section):
    """Bounds for one request, one tenant and one process."""

    body_bytes: int | None = Field(None, ge=1_000)
    """Maximum bytes of a chat request's body, after decompression; null means 100 MB.

    A larger body gets 413. If the bodies of open requests together exceed four times this size, further requests get
    503 with `retry-after`. The provider's own limit is 32 MB in Messages, else 50 MB (Bedrock 20 MB, Vertex 30 MB).
    Above 0.8 of the provider's limit, Steno masks the oldest media and used tool results.
    """
    cache_bytes: int = Field(CACHE_BYTES, ge=1_000_000)
    """Maximum bytes of memory for cached conversations. Steno drops the least recently used conversations first.

    In the cache, a conversation takes about three times its bytes. More memory saves CPU if many long conversations are
    active ([sizing](operations.md#sizing)). Each worker gets an equal share.
    """
    connections: int = Field(1_000, ge=1)
    """Maximum number of open client connections.

    Above this number, Steno closes the connection that was idle for longest. If none is idle, the new connection gets
    503. Each request also needs a connection to the provider. At the start, Steno therefore raises the limit of open
    files, or logs a warning if it cannot. Each worker gets an equal share.
    """

    receive_seconds: ClassVar[float] = 60.0
    """Maximum seconds in which a client sends its headers, the body of a chat request, or the next piece of another
    body, or reads a piece of an answer."""
    compactions_per_tenant: ClassVar[int] = 16
    """Maximum number of one tenant's conversations compacted at the same time, in all processes together."""

    @property
    def largest_body(self) -> int:
        return self.body_bytes or LARGEST_BODY

    @property
    def in_flight_bytes(self) -> int:
        """Maximum bytes of all chat request bodies in progress. Above this sum, requests get 503 with `retry-after`."""
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
    """Serve the [inspector's pages](inspector.md), at `/` and under `/ui`. If this is off, the pages are a 404."""
    password: SecretStr | None = Field(None, min_length=SHORTEST_PASSWORD)
    """The operator's password, at least 16 characters. The password opens the pages of all tenants.

    Null: `steno serve` on a terminal and `steno run` make and print a password for this run; otherwise no page shows
    all tenants. A new password ends all sessions. With `server.admin`, only that address accepts the password.
    """


class LogSettings(Section):
    """[Log lines](logs.md)."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that Steno logs: debug, info, warning or error."""
    format: Literal["auto", "json", "text"] = "auto"
    """Format of log lines on standard output. `auto`: text on a terminal, JSON anywhere else."""


_NO_NAMES = CREDENTIALS | {b"host", b"cookie", b"forwarded", b"x-forwarded-for", b"content-type", b"content-length"}
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")


class ClientSettings(Section):
    """[How Steno identifies a caller](security.md#who-a-caller-is). By default, the caller's key identifies it."""

    header: str | None = None
    """Header in which a proxy in `server.trusted_proxies` names the caller, such as `x-forwarded-user`.

    A request with this header that comes from no such proxy gets 401. The proxy must remove a caller's header.
    If an upstream has `api_key_env`, every request needs this header ([who pays](security.md#who-pays)).
    """
    tenant: str | None = Field(None, min_length=1, max_length=200)
    """Name of a single tenant for all callers, whatever key they send. Each caller can then read all stored data.

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
    """Identity of conversations: [how Steno recognises a conversation](rest.md#names-of-conversations)."""

    ignore: tuple[re.Pattern[str], ...] = ()
    """Regular expressions of volatile text, such as an injected date. Steno ignores such text when it compares
    messages.

    After a change of this setting, Steno no longer finds the summaries of conversations with such text.
    """


class EventSettings(Section):
    """Steno's additions to answers."""

    stream: EventShape = "chunk"
    """Shape of compaction events on streams: chunk, comment or off.

    [Shapes](rest.md#shapes) has the frames of each shape. Every client accepts `chunk`. The header `x-context-events`
    sets the shape for one request.
    """
    body: bool = True
    """Add the members `context_status` and `context` to answers. Steno sends its headers in any case."""
