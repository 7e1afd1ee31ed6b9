"""References: what a client keeps for a compaction of ours opens for it alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.compaction.references import BrokenReference, Reference, References

SECRET = b"a secret"
REFERENCE = Reference(("chk_" + "0a" * 16, "chk_" + "1b" * 16), b"p" * 16, 1_795_000_000)
SEALS = References(SECRET)
SEALED = SEALS.sealed(REFERENCE, "tenant", "responses")


def test_it_opens_for_whom_it_was_sealed() -> None:
    assert SEALS.opened(SEALED, ("tenant",), "responses") == REFERENCE
    assert References(SECRET).opened(SEALED, ("tenant",), "responses") == REFERENCE


@pytest.mark.parametrize(
    ("tenant", "format_"), [("other", "responses"), ("tenant", "messages"), ("tenant\nresponses", "")]
)
def test_it_opens_for_nobody_else(tenant: str, format_: str) -> None:
    with pytest.raises(BrokenReference):
        SEALS.opened(SEALED, (tenant,), format_)


def test_it_opens_for_whoever_the_tenant_has_become() -> None:
    assert SEALS.opened(SEALED, ("person", "tenant"), "responses") == REFERENCE


def test_another_server_cannot_open_it() -> None:
    with pytest.raises(BrokenReference, match="secret"):
        References(b"another").opened(SEALED, ("tenant",), "responses")


@given(st.integers(5, len(SEALED) - 1), st.sampled_from("ABCxyz012-_=~ü"))
def test_no_character_of_it_can_be_another(place: int, character: str) -> None:
    altered = SEALED[:place] + character + SEALED[place + 1 :]
    if altered != SEALED:
        with pytest.raises(BrokenReference):
            SEALS.opened(altered, ("tenant",), "responses")


@pytest.mark.parametrize(
    "text", ["stn1.", "stn1.AAAA", "stn1." + "A" * 200_000, SEALED[:-1], SEALED + "A", SEALED + "="]
)
def test_what_is_cut_or_made_up_is_refused(text: str) -> None:
    with pytest.raises(BrokenReference):
        SEALS.opened(text, ("tenant",), "responses")


def test_the_same_reference_is_sealed_anew_each_time() -> None:
    assert SEALS.sealed(REFERENCE, "tenant", "responses") != SEALED


def test_it_opens_however_many_summaries_it_stands_for() -> None:
    many = Reference(tuple(f"chk_{number:032x}" for number in range(1_000)), b"p" * 16, 1_795_000_000)
    assert SEALS.opened(SEALS.sealed(many, "tenant", "responses"), ("tenant",), "responses") == many
