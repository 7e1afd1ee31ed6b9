"""Which tenant a request belongs to."""

from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any, Literal

import pytest

from app.conversation.identity import Identity as Digests
from app.errors import InvalidCredentials, MissingCredentials
from app.http.credentials import ACCOUNTS, CREDENTIALS, KEYS, QUERY_KEYS, keys_alone, keys_in, sends_key, without_keys
from app.http.headers import client_of
from app.proxy.caller import ANONYMOUS, Authenticator, Identity

DIGESTS = Digests(b"secret")


def identity(
    *headers: tuple[bytes, bytes],
    host: str = "10.0.0.1",
    allowed: bool | Literal["loopback"] = "loopback",
    query: bytes = b"",
    trusted: Sequence[str] = (),
    **options: Any,
) -> Identity:
    return Authenticator(DIGESTS, allowed, tuple(map(ip_network, trusted)), **options).identify(headers, host, query)


def tenant(*headers: tuple[bytes, bytes], **options: Any) -> str:
    return identity(*headers, **options).tenant


def test_the_identity_says_by_what_the_caller_is_known() -> None:
    assert identity((b"authorization", b"Bearer k")) == Identity(DIGESTS.tenant(b"k"), "key")
    assert identity(host="127.0.0.1") == identity(allowed=True) == Identity(ANONYMOUS, "anonymous")


@pytest.mark.parametrize("name", sorted(KEYS))
@pytest.mark.parametrize("value", [b"k", b"Bearer k", b"bearer k", b"BEARER   k", b" Bearer \t k "])
def test_a_key_is_one_tenant_however_it_is_sent(name: bytes, value: bytes) -> None:
    assert tenant((name, value)) == DIGESTS.tenant(b"k")
    assert tenant((name, value)) != tenant((name, b"Bearer other"))


@pytest.mark.parametrize("key", [b"Bearerk", b"bearer-k", b"Basic k", b"Bearer: k"])
def test_only_the_word_bearer_is_no_part_of_the_key(key: bytes) -> None:
    assert tenant((b"authorization", key)) == DIGESTS.tenant(key)


def test_of_several_keys_the_tenant_holds_all_in_whatever_order_they_come() -> None:
    """Beside a placeholder that everybody sends, the gateway's own key still tells callers apart."""
    placeholder, mine, yours = (
        (b"authorization", b"Bearer none"),
        (b"ocp-apim-subscription-key", b"mine"),
        (b"ocp-apim-subscription-key", b"yours"),
    )
    assert tenant(placeholder, mine) == tenant(mine, placeholder)
    assert len({tenant(placeholder), tenant(mine), tenant(placeholder, mine), tenant(placeholder, yours)}) == 4
    assert tenant(yours, mine) == tenant(mine, (b"api-key", b"yours")) == tenant(query=b"key=yours&key=mine")
    assert tenant(mine, mine) == tenant(mine, (b"api-key", b"mine")) == tenant(mine, (b"api-key", b"")) == tenant(mine)


def test_who_pays_is_not_who_calls() -> None:
    key = (b"authorization", b"Bearer k")
    assert tenant(key, *((name, b"org-1") for name in ACCOUNTS)) == tenant(key)
    assert KEYS | ACCOUNTS == CREDENTIALS


def test_the_tenant_does_not_hold_the_key() -> None:
    assert "k-123" not in tenant((b"authorization", b"Bearer k-123"))


@pytest.mark.parametrize("header", [(b"authorization", b""), (b"authorization", b"bearer "), (b"x", b"y")])
def test_without_a_key_only_this_machine_is_served(header: tuple[bytes, bytes]) -> None:
    for host in ("127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"):
        assert tenant(header, host=host) == ANONYMOUS
    for host in ("10.0.0.1", "::ffff:10.0.0.1", "", "testclient"):
        with pytest.raises(MissingCredentials):
            tenant(header, host=host)


def test_the_operator_may_serve_everybody_or_nobody() -> None:
    assert tenant(allowed=True) == ANONYMOUS
    with pytest.raises(MissingCredentials, match="allow_unauthenticated is false"):
        tenant(host="127.0.0.1", allowed=False)
    assert tenant((b"authorization", b"Bearer k"), allowed=False) == DIGESTS.tenant(b"k")


@pytest.mark.parametrize("name", sorted(QUERY_KEYS))
def test_a_key_in_the_query_is_the_same_one_as_in_a_header(name: bytes) -> None:
    for query in (name + b"=k%2B1", b"a=b&" + name.upper() + b"=k%2b1&c", name + b"=k%2B1&" + name + b"=k%2B1"):
        assert tenant(query=query) == tenant((b"x-goog-api-key", b"k+1")) == DIGESTS.tenant(b"k+1")
        assert b"k%2" not in without_keys(query)
    assert without_keys(b"a=b&" + name + b"=k&c&d=%2F") == b"a=b&c&d=%2F"
    assert keys_alone(b"a=b&" + name + b"=k%2f&c&d=%2F") == name + b"=k%2f"


@pytest.mark.parametrize("query", [b"", b"key", b"key=", b"monkey=k", b"alt=sse"])
def test_a_query_without_a_key_names_nobody(query: bytes) -> None:
    with pytest.raises(MissingCredentials):
        tenant(query=query)
    assert without_keys(query).startswith((b"", b"monkey", b"alt"))


def test_a_key_cannot_stand_for_two() -> None:
    assert tenant(query=b"key=a%00b") != tenant((b"api-key", b"a"), (b"x-api-key", b"b"))


@pytest.mark.parametrize("scheme", [b"Basic", b"Token", b"ApiKey", b"Api-Key"])
def test_a_scheme_means_the_same_in_any_case(scheme: bytes) -> None:
    assert (
        tenant((b"authorization", scheme.lower() + b"  eDp5"))
        == tenant((b"authorization", scheme.upper() + b" eDp5"))
        == DIGESTS.tenant(scheme + b" eDp5")
    )


# Where a request came from

FORWARDED_BY_SOMEBODY = [
    (b"x-forwarded-for", b"127.0.0.1"),
    (b"x-forwarded-proto", b"https"),
    (b"forwarded", b"for=127.0.0.1"),
    (b"x-real-ip", b"127.0.0.1"),
    (b"via", b"1.1 nginx"),
    (b"cf-connecting-ip", b"127.0.0.1"),
    (b"x-envoy-external-address", b"127.0.0.1"),
]


@pytest.mark.parametrize("header", FORWARDED_BY_SOMEBODY, ids=lambda header: header[0].decode())
@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "10.0.0.1"])
def test_what_a_proxy_passes_on_is_not_local_unless_the_proxy_is_trusted(
    header: tuple[bytes, bytes], peer: str
) -> None:
    """A proxy on this machine would make the whole world local, and anybody can write the header."""
    with pytest.raises(MissingCredentials):
        tenant(header, host=peer)
    with pytest.raises(MissingCredentials):
        tenant(header, host=peer, trusted=["192.0.2.0/24"])


@pytest.mark.parametrize(
    "headers",
    [
        [(b"x-forwarded-for", b"127.0.0.1")],
        [(b"x-forwarded-for", b"203.0.113.9, ::1")],
        [(b"x-forwarded-for", b"203.0.113.9"), (b"x-forwarded-for", b"127.0.0.1, 10.0.0.1")],
        [(b"x-forwarded-for", b"127.0.0.1:4711, 10.9.9.9")],
        [(b"forwarded", b'for="[::1]:4711";proto=http, for=10.0.0.1')],
        [(b"forwarded", b"proto=https; FOR=127.0.0.1"), (b"x-forwarded-for", b"127.0.0.1")],
    ],
)
def test_a_trusted_proxy_tells_who_is_local(headers: list[tuple[bytes, bytes]]) -> None:
    assert tenant(*headers, host="10.0.0.1", trusted=["10.0.0.0/8"]) == ANONYMOUS


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"via", b"1.1 nginx")],
        [(b"x-real-ip", b"127.0.0.1")],
        [(b"x-forwarded-for", b"127.0.0.1, 203.0.113.9")],
        [(b"x-forwarded-for", b"127.0.0.1, 203.0.113.9, 10.0.0.2")],
        [(b"x-forwarded-for", b"127.0.0.1"), (b"x-forwarded-for", b"203.0.113.9")],
        [(b"x-forwarded-for", b"127.0.0.1, unknown")],
        [(b"x-forwarded-for", b"")],
        [(b"x-forwarded-for", b"10.0.0.7")],
        [(b"forwarded", b"for=127.0.0.1, for=203.0.113.9")],
        [(b"forwarded", b'for="x, for=127.0.0.1, for=203.0.113.9')],
        [(b"forwarded", b"for=127.0.0.1, proto=https")],
        [(b"forwarded", b"for=_hidden")],
        # It adds to one of them, and passes on what the caller wrote into the other.
        [(b"x-forwarded-for", b"203.0.113.9"), (b"forwarded", b"for=127.0.0.1")],
        [(b"x-forwarded-for", b"127.0.0.1"), (b"forwarded", b"for=203.0.113.9")],
    ],
)
def test_a_trusted_proxy_tells_who_is_not_local(headers: list[tuple[bytes, bytes]]) -> None:
    """The last one on the way who is no proxy of ours: what stands before it the caller wrote. Silence is no word."""
    for trusted, peer in (("10.0.0.0/8", "10.0.0.1"), ("10.0.0.0/8", "::ffff:10.0.0.1")):
        with pytest.raises(MissingCredentials):
            tenant(*headers, host=peer, trusted=[trusted])


def test_where_this_machine_is_a_proxy_it_has_to_say_who_asks() -> None:
    with pytest.raises(MissingCredentials):
        tenant(host="127.0.0.1", trusted=["127.0.0.1"])
    assert tenant((b"x-forwarded-for", b"127.0.0.1"), host="127.0.0.1", trusted=["127.0.0.1"]) == ANONYMOUS


@pytest.mark.parametrize(
    ("header", "is_key"),
    [
        ((b"authorization", b"Bearer sk-a"), True),
        ((b"x-api-key", b"k"), True),
        ((b"authorization", b"Bearer "), False),
        ((b"api-key", b" "), False),
        ((b"x-title", b"sk-a"), False),
    ],
)
def test_an_empty_key_is_none(header: tuple[bytes, bytes], is_key: bool) -> None:
    assert sends_key([(b"host", b"a"), header]) is is_key
    assert bool(keys_in([header])) is is_key


@pytest.mark.parametrize(
    ("headers", "peer", "client"),
    [
        ({}, "192.0.2.7", "192.0.2.7"),
        ({"x-forwarded-for": "203.0.113.9"}, "192.0.2.7", "192.0.2.7"),
        ({"x-forwarded-for": "198.51.100.1, 203.0.113.9, 10.0.0.2"}, "10.0.0.1", "203.0.113.9"),
        ({"forwarded": 'for="[2001:db8::7]:443"'}, "10.0.0.1", "2001:db8::/64"),
        ({"x-forwarded-for": "203.0.113.9", "forwarded": "for=198.51.100.1"}, "10.0.0.1", "10.0.0.1"),
        ({"x-forwarded-for": "nobody"}, "10.0.0.1", "10.0.0.1"),
        ({}, "2001:db8::1234", "2001:db8::/64"),
        ({}, "", ""),
    ],
)
def test_a_client_is_known_by_its_address_or_what_a_trusted_proxy_says(
    headers: dict[str, str], peer: str, client: str
) -> None:
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert client_of(sent, peer, [ip_network("10.0.0.0/8")]) == client


# The header and the tenant of the settings

USER = b"x-forwarded-user"
KEY = (b"authorization", b"Bearer k")


@pytest.mark.parametrize("value", [b",", b"\xa0", b" - "])
def test_a_name_without_a_letter_or_digit_is_none(value: bytes) -> None:
    with pytest.raises(MissingCredentials):
        named((USER, value), operator_pays=True)


def named(*headers: tuple[bytes, bytes], host: str = "10.0.0.1", **options: Any) -> Identity:
    """Identity where a proxy in 10.0.0.0/8 names the caller."""
    return identity(*headers, host=host, trusted=["10.0.0.0/8"], header=USER, **options)


def test_a_trusted_proxy_names_the_caller_whatever_its_key() -> None:
    alice = Identity(DIGESTS.person("header", "alice"), "header")
    assert named(KEY, (USER, b" alice ")) == named((USER, b"alice")) == named((USER, b"alice"), tenant="team") == alice


@pytest.mark.parametrize("host", ["10.0.0.1", "192.0.2.1", "127.0.0.1"])
def test_all_callers_without_a_name_are_the_one_tenant(host: str) -> None:
    assert named(KEY, host=host, tenant="team") == Identity(DIGESTS.person("single", "team"), "key")
    assert identity(KEY, (USER, b"alice"), tenant="team") == Identity(DIGESTS.person("single", "team"), "key")
    assert identity(host="127.0.0.1", tenant="team") == Identity(DIGESTS.person("single", "team"), "anonymous")
    with pytest.raises(MissingCredentials):
        identity(tenant="team")


@pytest.mark.parametrize("host", ["192.0.2.1", "127.0.0.1", "::1", "", "testclient"])
def test_a_name_from_another_peer_is_refused(host: str) -> None:
    for value in (b"alice", b""):
        with pytest.raises(InvalidCredentials, match="trusted_proxies"):
            named(KEY, (USER, value), (b"x-forwarded-for", b"10.0.0.1"), host=host)


@pytest.mark.parametrize("values", [[b"alice", b"bob"], [b"alice", b"alice"], [b"alice", b""], [b"a" * 501]])
def test_two_names_and_long_ones_are_refused(values: list[bytes]) -> None:
    with pytest.raises(InvalidCredentials, match=r"2 times|501 bytes"):
        named(KEY, *((USER, value) for value in values))


def test_an_empty_name_is_none() -> None:
    assert named(KEY, (USER, b" ")) == Identity(DIGESTS.tenant(b"k"), "key")


def test_names_of_one_kind_are_no_names_of_another() -> None:
    tenants = {DIGESTS.person(*names) for names in (("header", "a"), ("single", "a"), ("header", "a", ""))}
    assert len(tenants | {DIGESTS.tenant(b"a")}) == 4


def test_digests_are_those_of_the_previous_release() -> None:
    """What it stored is found again. The values are those of commit 21db7e6e."""
    sk = (b"authorization", b"Bearer sk-1")
    assert tenant(sk) == "d4b50c62726dde8130d18e96147b555a"
    assert tenant(sk, (b"x-api-key", b"sk-2"), query=b"key=sk%2B3") == "623881935be8ebff46e39a5809491201"
    assert named((USER, "zoë".encode())).tenant == "d694a6f6b52f696f5b14513ce295000c"
    assert named(sk, tenant="team").tenant == "7ecf3f09149859283de391e528f6c87e"


# The operator's key


@pytest.mark.parametrize("headers", [[], [KEY], [(USER, b" ")], [KEY, (b"x-forwarded-for", b"127.0.0.1")]])
@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "192.0.2.1", ""])
def test_where_the_operator_pays_every_request_needs_the_name(headers: list[tuple[bytes, bytes]], host: str) -> None:
    for allowed in (True, False, "loopback"):
        with pytest.raises((MissingCredentials, InvalidCredentials), match="trusted_proxies"):
            named(*headers, host=host, allowed=allowed, tenant="team", operator_pays=True)
    assert named(KEY, (USER, b"alice"), operator_pays=True).method == "header"


@pytest.mark.parametrize("headers", [[], [KEY]])
def test_without_a_proxy_the_operator_pays_for_this_machine_alone(headers: list[tuple[bytes, bytes]]) -> None:
    assert identity(*headers, host="127.0.0.1", operator_pays=True) == identity(*headers, host="127.0.0.1")
    for host, forwarded in (("192.0.2.1", []), ("", []), ("127.0.0.1", [(b"x-real-ip", b"127.0.0.1")])):
        with pytest.raises(MissingCredentials, match="this machine alone"):
            identity(*headers, *forwarded, host=host, allowed=True, tenant="team", operator_pays=True)
