"""How the pages write numbers, names and addresses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.inspector import pages
from app.inspector.pages import address, segment
from app.store import UsageSum

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("number", "written"),
    [
        *((None, "\N{EN DASH}"), (0, "0"), (7, "7"), (999, "999"), (1_000, "1k"), (31_449, "31.4k")),
        *((999_400, "999k"), (999_600, "1M"), (-1_234, "-1.23k"), (2_500_000_000, "2.5B")),
    ],
)
def test_a_number_is_written_in_three_digits(number: int | None, written: str) -> None:
    assert pages.short(number) == written


@pytest.mark.parametrize(
    ("amount", "written"),
    [
        (None, "\N{EN DASH}"),
        (0, "0.00"),
        (0.00123, "0.0012"),
        (0.5, "0.500"),
        (12.345, "12.35"),
        (4_321.9, "4,322"),
        (-0.5, "-0.500"),
        (-1e-9, "0.00"),
    ],
)
def test_money_has_two_digits_that_say_something(amount: float | None, written: str) -> None:
    assert pages.money(amount) == written


@pytest.mark.parametrize(
    ("share", "written"), [(None, "\N{EN DASH}"), (0, "0 %"), (0.012, "1.2 %"), (0.0996, "10 %"), (1, "100 %")]
)
def test_a_small_share_has_a_decimal(share: float | None, written: str) -> None:
    assert pages.percent(share) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(-5, "just now"), (59, "just now"), (60, "1 min ago"), (7_200, "2 h ago"), (200_000, "2 d ago")],
)
def test_a_time_is_told_in_its_largest_unit(seconds: int, written: str) -> None:
    assert pages.ago(NOW - timedelta(seconds=seconds), NOW) == written


def test_an_amount_in_dollars_has_their_sign() -> None:
    assert [pages.money(amount, pages.DOLLARS) for amount in (0.5, -0.0452)] == ["$0.500", "-$0.0452"]
    assert pages.currency_of(UsageSum(priced=2, list_priced=1, billed=1)) == pages.DOLLARS
    assert pages.currency_of(UsageSum(priced=2, list_priced=1)) == "", "the operator's own prices have no currency"


def test_a_digest_is_shortened_and_a_name_is_not() -> None:
    assert pages.tenant("0123456789abcdef0123456789abcdef") == "key digest …cdef"
    assert pages.tenant("anonymous") == "anonymous"


def test_an_address_holds_whatever_a_client_named() -> None:
    assert segment("a/b?<c>") == "a%2Fb%3F%3Cc%3E"
    assert address("/ui", q="a&b", empty="", none=None) == "/ui?q=a%26b"
    assert address("/ui") == "/ui"
