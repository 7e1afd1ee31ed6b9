"""Tokens of a known issuer: those that it signed for us, and no other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from app.errors import IdentityUnavailable, InvalidCredentials
from app.proxy import issuers
from app.proxy.issuers import Issuer, Verified, claims_in

ISSUER, AUDIENCE = "https://id.example.com", "steno"
RSA = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def published(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": list(keys)})


def rsa_key(key: Any = RSA, kid: str = "one", **more: Any) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, **more}


def token(
    key: Any = RSA, algorithm: str = "RS256", headers: dict[str, Any] | None = None, left_out: str = "", **claims: Any
) -> bytes:
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": int(time()) + 600} | claims
    said.pop(left_out, None)
    return jwt.encode(said, key, algorithm, headers={"kid": "one"} if headers is None else headers).encode()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def issuer(folder: Path, keys: str | None = None, claim: str = "sub", clock: Clock | None = None) -> Issuer:
    file = folder / "jwks.json"
    file.write_text(published(rsa_key()) if keys is None else keys)
    return Issuer(ISSUER, AUDIENCE, str(file), claim, clock or Clock())


def verify(by: Issuer, sent: bytes) -> Verified:
    return asyncio.run(by.verified(sent))


def test_a_token_says_who_calls_until_it_expires(tmp_path: Path) -> None:
    expires = int(time()) + 100
    found = verify(issuer(tmp_path), token(exp=expires))
    assert found == Verified("alice", expires + issuers.LEEWAY_SECONDS)
    assert verify(issuer(tmp_path, claim="email"), token(email="a@example.com")).claim == "a@example.com"
    assert verify(issuer(tmp_path), token(aud=["other", AUDIENCE], sub="alice")).claim == "alice"


@pytest.mark.parametrize(
    ("key", "algorithm", "jwk"),
    [
        (RSA, "PS256", rsa_key(alg="PS256")),
        (EC, "ES256", {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "one"}),
        (ED, "EdDSA", {**OKPAlgorithm.to_jwk(ED.public_key(), as_dict=True), "kid": "one"}),
    ],
)
def test_other_key_pairs_do_as_well(tmp_path: Path, key: Any, algorithm: str, jwk: dict[str, Any]) -> None:
    assert verify(issuer(tmp_path, published(jwk)), token(key, algorithm)).claim == "alice"


def test_a_token_that_names_no_key_may_be_of_any(tmp_path: Path) -> None:
    ec_key = {**ECAlgorithm.to_jwk(EC.public_key(), as_dict=True), "kid": "three"}
    keys = published(ec_key, rsa_key(OTHER, "two"), rsa_key())
    assert verify(issuer(tmp_path, keys), token(headers={})).claim == "alice"


def public(key: Any) -> bytes:
    return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def forged(algorithm: str) -> bytes:
    """Signed with what everybody knows: nothing, or the public key."""
    if algorithm == "none":
        return token(None, "none")
    head, body, _ = token().split(b".")
    head = jwt.utils.base64url_encode(json.dumps({"alg": "HS256", "kid": "one", "typ": "JWT"}).encode())
    signed = jwt.get_algorithm_by_name("HS256")
    signature = signed.sign(head + b"." + body, public(RSA))
    return b".".join((head, body, jwt.utils.base64url_encode(signature)))


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(token(OTHER), id="another key"),
        pytest.param(forged("none"), id="no signature"),
        pytest.param(forged("HS256"), id="the public key as a secret"),
        pytest.param(token(headers={"kid": "two"}), id="a key that is not published"),
        pytest.param(token(exp=int(time()) - 100), id="expired"),
        pytest.param(token(nbf=int(time()) + 100_000), id="not valid yet"),
        pytest.param(token(aud="another"), id="for somebody else"),
        pytest.param(token(iss="https://id.example.org"), id="of another issuer"),
        pytest.param(token(left_out="exp"), id="for ever"),
        pytest.param(token(left_out="aud"), id="for anybody"),
        pytest.param(token(left_out="sub"), id="without a name"),
        pytest.param(token(email=""), id="with an empty name"),
        pytest.param(token(email=True), id="with a name that is none"),
        pytest.param(token(RSA, "RS512"), id="another algorithm than the key's"),
        pytest.param(token()[:-10] + b"AAAAAAAAAA", id="altered"),
        pytest.param(b"eyJ.e30.x", id="no token"),
    ],
)
def test_any_other_token_is_refused(tmp_path: Path, sent: bytes) -> None:
    claim = "email" if b"email" in str(claims_in(sent)).encode() else "sub"
    with pytest.raises(InvalidCredentials):
        verify(issuer(tmp_path, claim=claim), sent)


@pytest.mark.parametrize(
    "keys",
    [
        "",
        "{}",
        "[]",
        published(),
        published({"kty": "oct", "k": "AAAA", "kid": "one"}),
        published(rsa_key(use="enc")),
        published({"kty": "RSA", "kid": "one"}),
        published({"kty": "OKP", "crv": "X25519", "x": "AAAA", "kid": "one"}),
    ],
)
def test_without_public_keys_nobody_is_let_in(tmp_path: Path, keys: str) -> None:
    with pytest.raises(IdentityUnavailable):
        verify(issuer(tmp_path, keys), token())


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_short_key_lets_nobody_in(tmp_path: Path) -> None:
    short = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)  # noqa: S505 - that is the point
    with pytest.raises(InvalidCredentials):
        verify(issuer(tmp_path, published(rsa_key(short))), token(short))


def test_a_new_key_is_found_and_a_withdrawn_one_ends(tmp_path: Path) -> None:
    clock = Clock()
    by = issuer(tmp_path, clock=clock)

    async def rotated() -> None:
        assert (await by.verified(token())).claim == "alice"
        (tmp_path / "jwks.json").write_text(published(rsa_key(OTHER, "two")))
        new = token(OTHER, headers={"kid": "two"})
        with pytest.raises(InvalidCredentials):  # Not looked for so soon: tokens can name any key.
            await by.verified(new)
        clock.now += issuers.RETRY_SECONDS
        assert (await by.verified(new)).claim == "alice"
        with pytest.raises(InvalidCredentials):
            await by.verified(token())

    asyncio.run(rotated())


def test_a_withdrawn_key_ends_also_where_nobody_called_meanwhile(tmp_path: Path) -> None:
    clock = Clock()
    by = issuer(tmp_path, clock=clock)

    async def withdrawn() -> None:
        await by.verified(token())
        (tmp_path / "jwks.json").write_text(published(rsa_key(OTHER, "two")))
        clock.now += issuers.TRUSTED_SECONDS
        with pytest.raises(InvalidCredentials):
            await by.verified(token())

    asyncio.run(withdrawn())


def test_keys_are_used_for_a_while_when_no_new_ones_can_be_had(tmp_path: Path) -> None:
    clock = Clock()
    by = issuer(tmp_path, clock=clock)

    async def cut_off() -> None:
        sent = token(exp=int(time()) + 10**6)
        await by.verified(sent)
        (tmp_path / "jwks.json").unlink()
        clock.now += issuers.USABLE_SECONDS - 1
        await by.verified(sent)
        clock.now += 1
        with pytest.raises(IdentityUnavailable):
            await by.verified(sent)

    asyncio.run(cut_off())


@pytest.mark.parametrize("sent", [b"", b"sk-key", b"a.b.c", b"ey.ey.ey", b"eyJ" + b"." * 30_000, b"ey\xff.\xff.\xff"])
def test_a_key_is_no_token(sent: bytes) -> None:
    assert claims_in(sent) is None


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(token(name="x" * 30_000), id="a long one"),
        pytest.param(token(headers={"crit": ["more"], "more": 1}), id="one with a header that nobody knows"),
        pytest.param(token()[:-1], id="one that was cut off"),
        pytest.param(b" ." + token().split(b".")[1] + b".x", id="one whose header cannot be read"),
    ],
)
def test_a_token_is_known_by_its_claims_whatever_else_is_wrong_with_it(tmp_path: Path, sent: bytes) -> None:
    """Else it would be a key like others, and go to a provider."""
    assert (claims_in(sent) or {}).get("iss") == ISSUER
    if len(sent) < 10_000:
        with pytest.raises(InvalidCredentials):
            verify(issuer(tmp_path), sent)


def test_claims_are_read_before_they_are_verified() -> None:
    assert claims_in(token(OTHER)) == jwt.decode(token(OTHER), options={"verify_signature": False})
