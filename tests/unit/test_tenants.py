"""Whose request it is."""

import pytest

from app.core.identity import Identity
from app.errors import MissingCredentials
from app.tenants import ANONYMOUS, Tenants

IDENTITY = Identity(b"secret")


def tenant(*headers: tuple[bytes, bytes], host: str = "10.0.0.1", allowed: bool = False) -> str:
    return Tenants(IDENTITY, allowed).tenant(headers, host)


def test_a_key_is_one_tenant_however_it_is_sent() -> None:
    sent = [(b"authorization", b"Bearer k"), (b"authorization", b"k"), (b"api-key", b"k"), (b"x-api-key", b"k")]
    assert len({tenant(header) for header in sent}) == 1
    assert tenant(sent[0]) != tenant((b"authorization", b"Bearer other"))


def test_the_tenant_does_not_hold_the_key() -> None:
    assert "k-123" not in tenant((b"authorization", b"Bearer k-123"))


@pytest.mark.parametrize("header", [(b"authorization", b""), (b"authorization", b"Bearer "), (b"x", b"y")])
def test_without_a_key_only_this_machine_is_served(header: tuple[bytes, bytes]) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        assert tenant(header, host=host) == ANONYMOUS
    for host in ("10.0.0.1", "", "testclient"):
        with pytest.raises(MissingCredentials):
            tenant(header, host=host)


def test_the_operator_may_serve_everybody() -> None:
    assert tenant(allowed=True) == ANONYMOUS
