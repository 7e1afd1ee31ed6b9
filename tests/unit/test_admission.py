"""Admission: the host names that Steno answers to, the pages that may call it, and loops of Stenos."""

from __future__ import annotations

import pytest

from app.errors import HostNotAllowed, InvalidRequest, LoopDetected, OriginNotAllowed
from app.http.admission import MOST_HOPS, HostPolicy, authority_of, check_hops
from app.http.headers import HOPS, Headers, hops_in, new_instance, with_hop

POLICY = HostPolicy("127.0.0.1")
HERE = "localhost:8080"


def with_host(*hosts: bytes) -> Headers:
    return [(b"host", host) for host in hosts]


def asked_by(origin: bytes, *more: tuple[bytes, bytes]) -> Headers:
    return [(b"origin", origin), *more]


# Hosts


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "localhost:8080", "LOCALHOST.", "app.localhost", "127.0.0.1:8080", "127.8.8.8", "[::1]:8080"),
        *("10.0.0.7", "203.0.113.9:80", "[2001:db8::1]", "0.0.0.0:8080", "[::ffff:127.0.0.1]", "localhost:"),
        *("steno", "steno:8080", "my_steno", "mac.local", "steno.internal", "steno.home.arpa", "steno.test"),
        *("steno.prod.svc", "steno.prod.svc.cluster.local"),
    ],
)
def test_names_that_nobody_else_can_own_are_answered_to(host: str) -> None:
    assert POLICY.check_host(with_host(host.encode()), None, "1.1") == host


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "steno.example.com:8080", "localhost.evil.example", "127.0.0.1.evil.example", "x.dev"),
        *("evillocalhost.com", "local.evil.example", "127.0.0.1.nip.io", "steno.prod", "xn--lcal-0ta.example"),
    ],
)
def test_a_name_that_somebody_else_can_own_is_not_answered_to(host: str) -> None:
    with pytest.raises(HostNotAllowed, match="allowed_hosts") as refused:
        POLICY.check_host(with_host(host.encode()), None, "1.1")
    assert host in refused.value.message
    assert HostPolicy("127.0.0.1", hosts=["*"]).check_host(with_host(host.encode()), None, "1.1")


@pytest.mark.parametrize(
    "host",
    [
        *(b"", b" ", b"a b", b"localhost, evil.example", b"localhost@evil.example", b"http://localhost", b"localhost/"),
        *(b"localhost:port", b"localhost:123456", b"[localhost]", b"[::1", b"[127.0.0.1]", b"a..b", b".", b".local"),
        *(b"localhost\x00", b"l\xc3\xb6calhost", b"localhost#", b"localhost?", b"localhost\\", b"::1", b"%6cocalhost"),
    ],
)
def test_what_is_no_host_is_refused_whatever_is_allowed(host: bytes) -> None:
    with pytest.raises(InvalidRequest):
        HostPolicy("127.0.0.1", hosts=["*"]).check_host(with_host(host), None, "1.1")
    with pytest.raises(InvalidRequest):
        HostPolicy("127.0.0.1", hosts=["*"]).check_host(with_host(b"localhost"), host, "1.1")


def test_allowed_names_are_whole_names_or_domains() -> None:
    policy = HostPolicy("proxy.example.net", hosts=["steno.example.com", ".example.org"])
    for allowed in (b"STENO.example.com:443", b"steno.example.com.", b"example.org", b"a.b.example.org"):
        assert policy.check_host(with_host(allowed), None, "1.1")
    assert policy.check_host(with_host(b"Proxy.Example.net:8080"), None, "1.1")
    for refused in (b"a.steno.example.com", b"example.com", b"evilexample.org", b"example.org.evil.example"):
        with pytest.raises(HostNotAllowed):
            policy.check_host(with_host(refused), None, "1.1")


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        (b"/v1/models", None),
        (b"*", None),
        (b"//evil.example/v1", None),
        (b"/v1/models?u=http://evil.example", None),
        (b"http://evil.example/v1", b"evil.example"),
        (b"HTTP://evil.example:80", b"evil.example:80"),
        (b"http://a@evil.example?x", b"a@evil.example"),
        (b"http:///v1", b""),
    ],
)
def test_a_target_that_is_a_whole_url_names_a_host(target: bytes, authority: bytes | None) -> None:
    assert authority_of(target) == authority


# Origins


@pytest.mark.parametrize(
    "origin",
    [
        *(b"http://localhost:8080", b"http://localhost:3000", b"https://localhost", b"HTTP://127.0.0.1:5173"),
        *(b"http://[::1]:1", b"http://tauri.localhost", b"app://obsidian.md", b"tauri://localhost", b"file://"),
        *(b"vscode-webview://1a2b", b"vscode-file://vscode-app", b"capacitor://localhost"),
    ],
)
def test_pages_of_this_machine_and_installed_programs_may_call_a_model_and_read_nothing_stored(origin: bytes) -> None:
    """Any program of this machine may serve a page, and a caller without a key is the same for all of them."""
    assert POLICY.check_origin(asked_by(origin), HERE, stored=False) == origin
    if origin != b"http://localhost:8080":  # Steno's own.
        with pytest.raises(OriginNotAllowed, match="allowed_origins"):
            POLICY.check_origin(asked_by(origin), HERE, stored=True)


@pytest.mark.parametrize(
    "origin",
    [
        *(b"https://evil.example", b"http://evil.example:8080", b"null", b"", b"http://", b"localhost", b"*"),
        *(b"chrome-extension://abc", b"moz-extension://abc", b"http://localhost.evil.example", b"ftp://localhost"),
        *(b"http://127.0.0.1.nip.io", b"http://localhost@evil.example", b"http://evil.example/localhost"),
        *(b"http://10.0.0.7", b"http://evil.example#localhost", b"data:text/html", b"about:blank", b"blob:null"),
        *(b"https://evil.example http://localhost:8080", b"http://mac.local:8080", b"\xff://localhost"),
    ],
)
@pytest.mark.parametrize("stored", [False, True])
def test_any_other_page_may_not(origin: bytes, stored: bool) -> None:
    with pytest.raises(OriginNotAllowed, match="allowed_origins"):
        POLICY.check_origin(asked_by(origin), HERE, stored=stored)
    assert HostPolicy("127.0.0.1", origins=["*"]).check_origin(asked_by(origin), HERE, stored=stored) == origin


@pytest.mark.parametrize("stored", [False, True])
def test_a_page_of_the_host_that_was_asked_for_may_call(stored: bool) -> None:
    for host, origin in (
        ("steno.example.com", b"https://steno.example.com"),
        ("Steno.example.com:80", b"http://steno.example.com"),
        ("10.0.0.7:8080", b"http://10.0.0.7:8080"),
        ("[2001:db8::1]:8080", b"http://[2001:DB8::1]:8080"),
    ):
        assert POLICY.check_origin(asked_by(origin), host, stored=stored) == origin
    others: list[tuple[str | None, bytes]] = [
        ("10.0.0.7:8080", b"http://10.0.0.7"),
        ("10.0.0.7:8080", b"http://10.0.0.7:3000"),
        ("steno.example.com:8080", b"https://steno.example.com"),
        (None, b"http://steno.example.com"),
    ]
    for asked, origin in others:
        with pytest.raises(OriginNotAllowed):
            POLICY.check_origin(asked_by(origin), asked, stored=stored)


def test_what_a_browser_loads_for_another_site_names_no_page_and_is_refused() -> None:
    """An image, a script, a frame. A link that somebody follows is not; nor what is no browser."""
    cross = (b"sec-fetch-site", b"cross-site")
    for dest in (b"image", b"script", b"iframe", b"empty"):
        with pytest.raises(OriginNotAllowed):
            POLICY.check_origin([cross, (b"sec-fetch-dest", dest)], HERE, stored=False)
    with pytest.raises(OriginNotAllowed):
        POLICY.check_origin([cross], HERE, stored=False)
    assert POLICY.check_origin([cross, (b"sec-fetch-dest", b"document")], HERE, stored=False) is None
    for site in (b"same-origin", b"same-site", b"none"):
        assert (
            POLICY.check_origin([(b"sec-fetch-site", site), (b"sec-fetch-dest", b"image")], HERE, stored=False) is None
        )
    assert POLICY.check_origin([], HERE, stored=False) is None
    assert HostPolicy("127.0.0.1", origins=["*"]).check_origin([cross], HERE, stored=False) is None


# Loops

OURS, THEIRS = b"00112233aabbccdd", b"0123456789abcdef"


def test_every_steno_adds_its_own_name_after_those_before_it() -> None:
    sent = with_hop(with_hop([(b"x-a", b"1")], THEIRS), OURS)
    assert sent == [(b"x-a", b"1"), (HOPS, THEIRS + b", " + OURS)]
    assert hops_in(sent) == [THEIRS, OURS]


def test_a_request_is_refused_by_whom_it_passed_before_and_by_nobody_else() -> None:
    for headers in ([], [(HOPS, THEIRS)], [(HOPS, THEIRS), (HOPS, new_instance())]):
        check_hops(headers, OURS)
    for headers in ([(HOPS, OURS)], [(HOPS, OURS + b"," + THEIRS)], [(HOPS, THEIRS), (HOPS, b" " + OURS + b" ")]):
        with pytest.raises(LoopDetected, match="the base_url of an upstream leads back here") as refused:
            check_hops(headers, OURS)
        assert (refused.value.status, refused.value.repeatable) == (508, False)


def test_a_row_of_stenos_has_an_end() -> None:
    """A circle through a balancer passes another replica each time."""
    headers: list[tuple[bytes, bytes]] = []
    for _ in range(MOST_HOPS):
        headers = with_hop(headers, new_instance())
    check_hops(headers, OURS)
    with pytest.raises(LoopDetected, match="at most 16"):
        check_hops(with_hop(headers, THEIRS), OURS)


@pytest.mark.parametrize("made_up", [b"", b",,", b"x" * 16, THEIRS + b"0", b"ABCDEF0123456789", b"\xff" * 16, b"a b"])
def test_what_names_no_instance_goes_no_further(made_up: bytes) -> None:
    assert with_hop([(HOPS, made_up)], OURS) == [(HOPS, OURS)]
