"""Which names Steno answers to, and which pages may call it."""

import pytest

from app.errors import HostNotAllowed, InvalidRequest, OriginNotAllowed, UnsupportedMediaType
from app.http.admission import HostPolicy, authority_of, check_type, is_preflight, preflight_headers
from app.http.headers import Headers

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


def test_one_host_is_named() -> None:
    for hosts in ((b"localhost", b"evil.example"), (b"localhost", b"localhost"), (b"", b"localhost")):
        with pytest.raises(InvalidRequest, match="2 Host headers"):
            POLICY.check_host(with_host(*hosts), None, "1.1")
    with pytest.raises(InvalidRequest, match="No Host"):
        POLICY.check_host([], None, "1.1")
    with pytest.raises(InvalidRequest, match="No Host"):
        POLICY.check_host([], b"localhost", "1.1")
    assert POLICY.check_host([], None, "1.0") is None


def test_a_target_that_names_a_host_and_the_header_both_have_to_be_allowed() -> None:
    for target, header in ((b"evil.example", b"localhost"), (b"localhost", b"evil.example")):
        with pytest.raises(HostNotAllowed):
            POLICY.check_host(with_host(header), target, "1.1")
    assert POLICY.check_host(with_host(b"localhost"), b"127.0.0.1:8080", "1.1") == "localhost"


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


@pytest.mark.parametrize("stored", [False, True])
def test_pages_that_the_operator_allows_may_call(stored: bool) -> None:
    policy = HostPolicy("127.0.0.1", origins=["https://chat.example.com", "chrome-extension://abc"])
    for origin in (b"https://chat.example.com", b"https://Chat.example.com", b"chrome-extension://abc"):
        assert policy.check_origin(asked_by(origin), HERE, stored=stored) == origin
    for origin in (b"http://chat.example.com", b"https://chat.example.com:444", b"https://chat.example.com.evil.dev"):
        with pytest.raises(OriginNotAllowed):
            policy.check_origin(asked_by(origin), HERE, stored=stored)


def test_two_origins_are_none() -> None:
    twice = [(b"origin", b"http://localhost:3000"), (b"origin", b"http://localhost:3000")]
    with pytest.raises(OriginNotAllowed):
        POLICY.check_origin(twice, HERE, stored=False)


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


def test_a_preflight_is_told_what_it_asked_for() -> None:
    asked = [
        (b"origin", b"http://localhost:3000"),
        (b"access-control-request-method", b"POST"),
        (b"access-control-request-headers", b"authorization,x-stainless-os"),
        (b"access-control-request-private-network", b"true"),
    ]
    assert is_preflight("OPTIONS", asked)
    assert not is_preflight("POST", asked)
    assert not is_preflight("OPTIONS", asked[:1])
    assert preflight_headers(asked) == [
        (b"access-control-max-age", b"600"),
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", b"authorization,x-stainless-os"),
        (b"access-control-allow-private-network", b"true"),
    ]
    assert preflight_headers(asked[:2])[1:] == [(b"access-control-allow-methods", b"POST")]


# Types

LENGTH = (b"content-length", b"2")


@pytest.mark.parametrize("kind", [b"application/json", b"Application/JSON; charset=utf-8", b"application/x+json"])
@pytest.mark.parametrize("json_only", [True, False])
def test_json_needs_no_key(kind: bytes, json_only: bool) -> None:
    check_type([LENGTH, (b"content-type", kind)], json_only=json_only)


@pytest.mark.parametrize("body", [LENGTH, (b"transfer-encoding", b"chunked")])
@pytest.mark.parametrize(
    "kind", [None, b"", b"text/plain", b"TEXT/plain;charset=UTF-8", b"application/x-www-form-urlencoded"]
)
def test_what_any_page_can_send_needs_a_key(kind: bytes | None, body: tuple[bytes, bytes]) -> None:
    headers = [body] if kind is None else [body, (b"content-type", kind)]
    for json_only in (True, False):
        with pytest.raises(UnsupportedMediaType, match="content-type"):
            check_type(headers, json_only=json_only)


def test_uploads_and_other_types_pass_where_steno_reads_no_json() -> None:
    for kind in (b"multipart/form-data; boundary=x", b"audio/wav", b"text/plain2"):
        headers = [LENGTH, (b"content-type", kind)]
        check_type(headers, json_only=False)
        with pytest.raises(UnsupportedMediaType):
            check_type(headers, json_only=True)


def test_without_a_body_there_is_nothing_to_say() -> None:
    for headers in ([], [(b"content-length", b"0")], [(b"content-length", b"0"), (b"content-type", b"text/plain")]):
        check_type(headers, json_only=True)
