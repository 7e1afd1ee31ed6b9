"""Where Steno listens, whom it serves, and how much of what."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, IPvAnyNetwork, field_validator

from app.memory.caches import CACHE_BYTES
from app.settings.types import Seconds, Section, switch
from app.wire.paths import LARGEST_BODIES

_HOST = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._:\[\]-]*")


class ServerSettings(Section):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8080, ge=0, le=65_535)
    """Port to listen on; 0 lets the system choose."""
    workers: int = Field(1, ge=1, le=64)
    """Processes that serve at the same address, about one for each core."""
    allow_unauthenticated: Annotated[Literal["loopback", True, False], BeforeValidator(switch)] = "loopback"
    """Who is served without credentials, as the tenant `anonymous`: this machine (loopback), everyone, or nobody."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that Steno answers to, besides local ones and addresses; `.example.com` for all below it, `*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """Pages in browsers that may call Steno and read what it keeps, as `https://chat.example.com`; `*` for all."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` and `Forwarded` say where a request came from."""
    drain_seconds: Seconds = 25.0
    """How long a stopping server waits for open answers and for summaries that are being made."""

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
    body_bytes: int | None = Field(None, ge=1_000)
    """Largest chat request body; null means what the vendor of its API takes: 32 MiB for Messages, else 50 MiB."""
    in_flight_bytes: int = Field(400_000_000, ge=1_000)
    """Largest sum of the chat request bodies that are being served."""
    cache_bytes: int = Field(CACHE_BYTES, ge=1_000_000)
    """Memory for what is remembered of conversations; what was used longest ago goes first."""
    upload_bytes: int = Field(1_000_000_000, ge=1_000)
    """Largest body of any other request; it is passed on as it comes."""
    connections: int = Field(1_000, ge=1)
    """Most open connections of clients."""
    values: int = Field(200_000, ge=1_000)
    """Most values in a chat request body that is read; one with more is forwarded as it is."""
    messages: int = Field(10_000, ge=100)
    """Most messages of a chat request that is read; one with more is forwarded as it is."""
    header_count: int = Field(100, ge=10)
    """Most request headers."""
    header_bytes: int = Field(32_768, ge=1_024)
    """Largest sum of the request headers."""
    receive_seconds: Seconds = 60.0
    """Time for a request's headers to arrive, for a chat request's body, and for each piece of any other body."""
    write_stall_seconds: Seconds = 60.0
    """A client that takes nothing for this long is given up."""
    compactions_per_tenant: int | None = Field(16, ge=1)
    """Conversations of one tenant that are compacted at once, in each process; null for any number."""
    background_compactions: int = Field(16, ge=0)
    """Compactions in the background that are under way at once, in each process; 0 for none."""
    background_compactions_per_tenant: int = Field(8, ge=0)
    """Those of one tenant."""
    background_bytes: int = Field(64_000_000, ge=0)
    """Largest sum of the histories that they are made from; one tenant may have half of it."""
    forced_compactions_per_minute: int | None = Field(600, ge=1)
    """`POST .../compact` requests of one tenant in a minute, in each process; null for any number."""
    summary_tokens_per_hour: int | None = Field(None, ge=1)
    """Tokens that summaries of one tenant may take in an hour, in each process; null for any number."""

    def body_of(self, format_: str | None = None) -> int:
        """Bytes that a chat request's body in a format may have; without one, in the format that may have most."""
        if self.body_bytes is not None:
            return self.body_bytes
        return max(LARGEST_BODIES.values()) if format_ is None else LARGEST_BODIES[format_]

    def of_each(self, workers: int) -> Self:
        """What each of so many processes may hold, so that all of them keep to what is set: memory is the machine's."""
        return self.model_copy(
            update={
                "in_flight_bytes": max(self.in_flight_bytes // workers, min(self.in_flight_bytes, self.body_of())),
                "cache_bytes": self.cache_bytes // workers,
                "connections": max(self.connections // workers, 1),
            }
        )


class InspectorSettings(Section):
    enabled: bool = True
    """Serve the inspector's pages, at `/` and under `/ui`."""


class TelemetrySettings(Section):
    traces: Literal["off", "otlp"] = "off"
    """Spans of chat requests and summary calls, exported by OpenTelemetry; OTEL_* variables say where to."""


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    format: Literal["auto", "json", "text"] = "auto"
    """Shape of log lines on standard output; `auto` is text on a terminal and JSON anywhere else."""
