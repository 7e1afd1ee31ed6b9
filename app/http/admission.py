"""Admission: checks of a request's head before the body is read.

1. Headers: a limited number and size, and no name that some servers read as the name of another header.
2. Path: no `.` or `..` segment in any encoding.
3. Host and origin (`HostPolicy`): the host check stops DNS rebinding, and the origin check stops other sites' pages.
4. Hops: no loop through this Steno instance, and a limited number of other instances.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote_to_bytes

from app.errors import (
    HeadersTooLarge,
    HostNotAllowed,
    InvalidRequest,
    LoopDetected,
    OriginNotAllowed,
    TooManyBytesInFlight,
    UnsupportedMediaType,
)
from app.http.headers import Headers, hops_in, shadowed_by, shown, value_of

HEADER_COUNT = 100
HEADER_BYTES = 32_768
"""Maximum bytes of all header names and values of a request."""
MOST_DECODINGS = 5
_SUSPECT = re.compile(rb"[^a-zA-Z0-9/_:-]")
"""Pattern of all bytes outside a harmless set. A path without such bytes has no dot segment in any encoding."""
_DOT = re.compile(rb"\xc0\xae|\xe0\x80\xae|\xef\xbc\x8e|%u002e|%uff0e", re.IGNORECASE)
_SLASH = re.compile(rb"\\|\xc0\xaf|\xe0\x80\xaf|\xef\xbc\x8f|\xc1\x9c|%u002f|%u005c|%u2215|%uff0f", re.IGNORECASE)
_AFTER_SEGMENT = re.compile(rb"[;\x00-\x20]")
MOST_HOPS = 16
"""Maximum number of Steno instances that a request may have passed. The limit also ends a loop of many replicas."""

ANY = "*"

NOT_IN_PUBLIC_DNS = (
    ".localhost",  # RFC 6761, and always this machine
    ".test",  # RFC 6761
    ".local",  # RFC 6762: mDNS, and Kubernetes' cluster.local
    ".home.arpa",  # RFC 8375
    ".internal",  # reserved by ICANN for private use
    ".svc",  # Kubernetes' short form. It is not reserved, but its registration would break every cluster.
)
"""Domains that attackers cannot register. DNS rebinding needs a domain that the attacker has registered."""

APP_SCHEMES = frozenset({"app", "capacitor", "file", "tauri", "vscode-file", "vscode-webview"})
"""Origin schemes of installed programs. No web page has such an origin: even a local file's origin is `null`."""

SIMPLE_TYPES = frozenset({"", "text/plain", "application/x-www-form-urlencoded"})
"""Content types, except those of uploads, that pages can send without a CORS preflight. "" is a body without a type."""

_AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{0,5}))?")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#@]*)/?", re.IGNORECASE)
_PORTS = {"http": "80", "https": "443"}


def check_headers(headers: Headers) -> None:
    """Raise `HeadersTooLarge`, or `InvalidRequest` for a header name that some servers read as another name."""
    if len(headers) > HEADER_COUNT:
        over = shown(headers[HEADER_COUNT][0])
        raise HeadersTooLarge(
            f"{len(headers)} headers were sent; at most {HEADER_COUNT} are accepted."
            f" The first one too many is {over!r}.",
            over,
        )
    size = 0
    for name, value in headers:
        size += len(name) + len(value)
    if size > HEADER_BYTES:
        largest = shown(max(headers, key=lambda header: len(header[0]) + len(header[1]))[0])
        raise HeadersTooLarge(
            f"The headers take {size} bytes; at most {HEADER_BYTES} are accepted. The largest is {largest!r}.",
            largest,
        )
    for name, _ in headers:
        if b"_" in name and (known := shadowed_by(name)) is not None:
            raise InvalidRequest(
                f"The header {shown(name)!r} is refused, because some servers read {shown(known)!r} in it."
                " Send it with hyphens, or leave it out.",
                shown(name),
            )


def leaves_its_place(path: bytes) -> bool:
    r"""True if some server could find a `.` or `..` segment in the path. Some servers decode twice, read `\` as `/`,
    cut a segment at `;` or NUL, or accept overlong UTF-8."""
    if _SUSPECT.search(path) is None:
        return False
    for _ in range(MOST_DECODINGS):
        plain = _DOT.sub(b".", _SLASH.sub(b"/", path))
        if any(_AFTER_SEGMENT.split(segment, maxsplit=1)[0] in (b".", b"..") for segment in plain.split(b"/")):
            return True
        if (decoded := unquote_to_bytes(plain)) == path:
            return False
        path = decoded
    return True


def check_hops(headers: Iterable[tuple[bytes, bytes]], instance: bytes) -> None:
    """Raise `LoopDetected` if the request has passed this instance before, or more than `MOST_HOPS` instances."""
    hops = hops_in(headers)
    if instance in hops:
        raise LoopDetected(
            "This request went through this Steno before: the base_url of an upstream leads back here."
            " Point it at the provider."
        )
    if len(hops) > MOST_HOPS:
        raise LoopDetected(
            f"This request went through {len(hops)} Stenos, at most {MOST_HOPS} may stand in a row."
            " Their upstreams probably lead in a circle."
        )


class BytesInFlight:
    def __init__(self, at_most: int) -> None:
        self.at_most = at_most
        self.held_bytes = 0

    @contextmanager
    def counted(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that adds bytes of one request to the total. The end of the `with` block subtracts them. The
        function raises `TooManyBytesInFlight` if the total exceeds the limit."""
        own = 0

        def count(size: int) -> None:
            nonlocal own
            own += size
            self.held_bytes += size
            if self.held_bytes > self.at_most:
                raise TooManyBytesInFlight

        try:
            yield count
        finally:
            self.held_bytes -= own


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Allowed hosts and origins of requests."""

    bound: str
    """Address where Steno listens."""
    hosts: Sequence[str] = ()
    """Hosts in the settings; `.example.com` includes all subdomains, `*` is any host."""
    origins: Sequence[str] = ()
    """Origins in the settings, in lower case; `*` is any origin."""

    def check_host(self, headers: Headers, target_authority: bytes | None, http_version: str) -> str | None:
        """Check the requested host, and return it with its port. Raises `InvalidRequest` or `HostNotAllowed`.

        Return None for an HTTP/1.0 request without a host. Browsers send no such request.
        """
        sent = [value for name, value in headers if name == b"host"]
        if len(sent) > 1:
            raise InvalidRequest(f"{len(sent)} Host headers were sent; one is needed.", "host")
        if target_authority is not None:
            self._check_name(target_authority)
        if not sent:
            if http_version == "1.0":
                return None
            raise InvalidRequest("No Host header was sent; HTTP/1.1 needs one.", "host")
        return self._check_name(sent[0])

    def check_origin(self, headers: Headers, host: str | None, *, stored: bool) -> bytes | None:
        """Check and return the origin; None if the request has none. Raises `OriginNotAllowed`.

        Steno accepts its own pages and the origins in the settings. On a path without stored data (`stored` is False),
        Steno also accepts all pages of this machine.
        """
        sent = [value for name, value in headers if name == b"origin"]
        if not sent:
            is_cross_site = value_of(headers, b"sec-fetch-site") == "cross-site" and ANY not in self.origins
            # Without an origin, a cross-site request is allowed only if the user follows a link.
            if is_cross_site and value_of(headers, b"sec-fetch-dest") != "document":
                raise OriginNotAllowed(
                    "A page of another site may not have this loaded. If it is yours, let it fetch it, and add its"
                    " origin to server.allowed_origins.",
                    "sec-fetch-site",
                )
            return None
        origin = sent[0].decode("latin-1")
        if len(sent) > 1 or not (self._is_listed(origin, host) or (not stored and _is_of_this_machine(origin))):
            raise OriginNotAllowed(
                f"The page {shown(b', '.join(sent))!r} may not call Steno."
                " If it is yours, add it to server.allowed_origins.",
                "origin",
            )
        return sent[0]

    def _check_name(self, authority: bytes) -> str:
        found = _AUTHORITY.fullmatch(given := authority.decode("latin-1"))
        if found is None or not _is_whole(found["name"]):
            raise InvalidRequest(f"The host {shown(authority)!r} is none.", "host")
        name = _plain(found["name"])
        # A name without a dot is in no public DNS. An IP address has a colon or ends with a number.
        is_safe = "." not in name or ":" in name or name.rpartition(".")[2].isdecimal() or name == _plain(self.bound)
        if not (is_safe or fits_host(name, (*NOT_IN_PUBLIC_DNS, *self.hosts))):
            raise HostNotAllowed(
                f"Steno does not answer to the name {shown(authority)!r}."
                " If it is Steno's own, add it to server.allowed_hosts.",
                "host",
            )
        return given

    def _is_listed(self, origin: str, host: str | None) -> bool:
        """True if the origin is in the settings, or is Steno's own."""
        if ANY in self.origins or origin.lower() in self.origins:
            return True
        found = _ORIGIN.fullmatch(origin)
        scheme = found["scheme"].lower() if found is not None else ""
        if found is None or scheme not in _PORTS or _AUTHORITY.fullmatch(found["authority"]) is None:
            return False
        return _with_port(found["authority"], scheme) == _with_port(host or "", scheme)


def _is_of_this_machine(origin: str) -> bool:
    found = _ORIGIN.fullmatch(origin)
    if found is None:
        return False
    if (scheme := found["scheme"].lower()) not in _PORTS:
        return scheme in APP_SCHEMES
    named = _AUTHORITY.fullmatch(found["authority"])
    return named is not None and is_loopback_name(_plain(named["name"]))


def check_type(headers: Headers, *, json_only: bool) -> None:
    """Raise `UnsupportedMediaType` for a body with a type in `SIMPLE_TYPES`; with `json_only`, for any type except
    JSON. A request with a key in a header needs no check, because browsers send a preflight before it."""
    if not any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers
    ):
        return
    sent = (value_of(headers, b"content-type") or "").partition(";")[0].strip().lower()
    is_json = sent == "application/json" or (sent.startswith("application/") and sent.endswith("+json"))
    if not is_json if json_only else sent in SIMPLE_TYPES:
        what = f"of the type {sent!r:.100}" if sent else "without a type"
        needed = "content-type: application/json" if json_only else "its content-type, such as application/json"
        raise UnsupportedMediaType(
            f"A body {what} is not taken without an API key, because any page in a browser can send one."
            f" Send {needed}, or a key.",
            "content-type",
        )


def is_preflight(method: str, headers: Headers) -> bool:
    return method == "OPTIONS" and value_of(headers, b"access-control-request-method") is not None


def preflight_headers(headers: Headers) -> Headers:
    """Return the headers that answer an allowed page's preflight. They grant all requested methods and headers."""
    answer: Headers = [(b"access-control-max-age", b"600")]
    for asked, granted in (
        (b"access-control-request-method", b"access-control-allow-methods"),
        (b"access-control-request-headers", b"access-control-allow-headers"),
        (b"access-control-request-private-network", b"access-control-allow-private-network"),
    ):
        answer += [(granted, value) for name, value in headers if name == asked]
    return answer


def shared_with(origin: bytes) -> Headers:
    """Return the CORS headers that let a page read an answer and its headers, but not send cookies."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    ]


def authority_of(target: bytes) -> bytes | None:
    """Return host and port of a request target that is an absolute URL; None for a path."""
    scheme, found, rest = target.partition(b"://")
    if target.startswith((b"/", b"*")) or not found or not scheme.isalpha():
        return None
    return re.split(rb"[/?#]", rest, maxsplit=1)[0]


def is_loopback_name(name: str) -> bool:
    """True for a loopback address, `localhost` or one of its subdomains."""
    if fits_host(name, (".localhost",)):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def fits_host(name: str, allowed: Iterable[str]) -> bool:
    """True if `allowed` contains the name, a domain (`.example.com`) that includes the name, or `*`."""
    return any(
        entry == ANY or name == entry.lstrip(".") or (entry.startswith(".") and name.endswith(entry))
        for entry in allowed
    )


def _plain(name: str) -> str:
    return name.lower().removesuffix(".").strip("[]")


def _is_whole(name: str) -> bool:
    """True if the name has no empty label, or is an IPv6 address in brackets."""
    if not name.startswith("["):
        return all(name.removesuffix(".").split("."))
    try:
        return ip_address(name.strip("[]")).version == 6
    except ValueError:
        return False


def _with_port(authority: str, scheme: str) -> tuple[str, str]:
    found = _AUTHORITY.fullmatch(authority)
    return (_plain(found["name"]), found["port"] or _PORTS[scheme]) if found else ("", "")
