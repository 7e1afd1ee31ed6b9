"""Whose request it is."""

import pytest

from app.core.identity import Identity
from app.credentials import ACCOUNTS, CREDENTIALS, KEYS
from app.errors import MissingCredentials
from app.tenants import ANONYMOUS, Tenants

IDENTITY = Identity(b"secret")


def tenant(*headers: tuple[bytes, bytes], host: str = "10.0.0.1", allowed: bool = False) -> str:
    return Tenants(IDENTITY, allowed).tenant(headers, host)


@pytest.mark.parametrize("name", sorted(KEYS))
@pytest.mark.parametrize("value", [b"k", b"Bearer k", b"bearer k", b"BEARER   k", b" Bearer \t k "])
def test_a_key_is_one_tenant_however_it_is_sent(name: bytes, value: bytes) -> None:
    assert tenant((name, value)) == IDENTITY.tenant(b"k")
    assert tenant((name, value)) != tenant((name, b"Bearer other"))


@pytest.mark.parametrize("key", [b"Bearerk", b"bearer-k", b"Basic k", b"Bearer: k"])
def test_only_the_word_bearer_is_no_part_of_the_key(key: bytes) -> None:
    assert tenant((b"authorization", key)) == IDENTITY.tenant(key)


def test_of_several_keys_the_tenant_holds_all_in_whatever_order_they_come() -> None:
    """Beside a placeholder that everybody sends, the gateway's own key still tells callers apart."""
    placeholder, mine, yours = (
        (b"authorization", b"Bearer none"),
        (b"ocp-apim-subscription-key", b"mine"),
        (b"ocp-apim-subscription-key", b"yours"),
    )
    assert tenant(placeholder, mine) == tenant(mine, placeholder)
    assert len({tenant(placeholder), tenant(mine), tenant(placeholder, mine), tenant(placeholder, yours)}) == 4
    assert tenant(yours, mine) == tenant(mine, (b"api-key", b"mine")) == tenant(mine, (b"api-key", b"")) == tenant(mine)


def test_who_pays_is_not_who_calls() -> None:
    key = (b"authorization", b"Bearer k")
    assert tenant(key, *((name, b"org-1") for name in ACCOUNTS)) == tenant(key)
    assert KEYS | ACCOUNTS == CREDENTIALS


def test_the_tenant_does_not_hold_the_key() -> None:
    assert "k-123" not in tenant((b"authorization", b"Bearer k-123"))


@pytest.mark.parametrize("header", [(b"authorization", b""), (b"authorization", b"bearer "), (b"x", b"y")])
def test_without_a_key_only_this_machine_is_served(header: tuple[bytes, bytes]) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert tenant(header, host=host) == ANONYMOUS
    for host in ("10.0.0.1", "", "testclient"):
        with pytest.raises(MissingCredentials):
            tenant(header, host=host)


def test_the_operator_may_serve_everybody() -> None:
    assert tenant(allowed=True) == ANONYMOUS
