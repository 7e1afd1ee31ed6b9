"""A number in an error may be the client's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.formats.refusals import LONGEST_COMPARED, MOST_PLACES, PIECE, echoed_in, echoes

ERROR = "This model's maximum context length is {} tokens. However, your messages resulted in 130,000 tokens."


@pytest.mark.parametrize(
    "written",
    [
        *("128000", "000128000", "128,000", "128_000", "128 000", "1 2 8 0 0 0", "0x 128000"),
        *(r"\u0031\u00328000", r"\\u0031\\u00328000", r"\x31\x328000", "&#49;&#50;8000", "&#x31;28000", "%3128000"),
        *("\uff11\uff12\uff18000", "\u0661\u0662\u0668\u0660\u0660\u0660", "a128000b"),
    ],
)
def test_a_number_is_found_however_it_is_written(written: str) -> None:
    assert echoes(ERROR.format(128000), 128_000, f"say {written}")


@pytest.mark.parametrize(
    "written", ["1280001", "12800", "28,000", "1128000", "128001", "12.9e4", "128 cats", "", "130,000", "128.5k"]
)
def test_another_number_is_none(written: str) -> None:
    assert not echoes(ERROR.format(128000), 128_000, f"say {written}")


@pytest.mark.parametrize(
    ("request_text", "echoed"),
    [
        ("maximum CONTEXT length is: 4k tokens", True),
        ("that is 99 tokens. However, your turn", True),
        ("the context length is what counts", False),
        ("99 tokens, however yours", False),
        ("99 tokens. However, yourselves", False),
    ],
)
def test_words_beside_the_number_that_stand_beside_one_in_the_request_are_an_echo(
    request_text: str, echoed: bool
) -> None:
    """Whatever the provider made of the number."""
    assert echoes(ERROR.format("128,000"), 128_000, request_text) is echoed


def test_a_number_with_few_words_around_it_is_compared_alone() -> None:
    assert not echoes("limit 128000", 128_000, "limit 5")
    assert not echoes("\u00b2 9", 128_000, "limit 5")


@given(st.integers(1_000, 10**8), st.integers(0, 3), st.sampled_from(["{}", "{:,}", "{:_}", " {} "]))
def test_any_number_is_found_with_leading_zeros_and_separators(number: int, zeros: int, form: str) -> None:
    assert echoes("too long", number, "x" + "0" * zeros + form.format(number).strip() + ".")


@given(st.integers(1_000, 10**8), st.integers(1_000, 10**8))
def test_a_number_alone_holds_no_other(number: int, other: int) -> None:
    assert echoes("too long", number, str(other)) is (number == other)


@pytest.mark.parametrize("before", [0, PIECE - 3, PIECE - 30, 3 * PIECE - 10])
def test_a_long_request_is_looked_through_wherever_it_is_cut(before: int) -> None:
    filler = " " * before
    assert echoes(ERROR.format(128000), 128_000, filler + "128000 " + "word " * PIECE)
    assert not echoes(ERROR.format(128000), 128_000, filler + "12 8 " + "word " * PIECE)


def test_an_error_full_of_its_number_may_quote_anything() -> None:
    assert not echoes("the limit is 128000 tokens of yours, " * MOST_PLACES, 128_000, "hello")
    numbers = " ".join(f"{word} is at 128000 for {word}" for word in map(str, range(5_000)))
    assert echoes(numbers, 128_000, "hello")


@pytest.mark.parametrize(
    ("body", "echoed"),
    [
        (rb'{"a":"\u0031\u00328000"}', True),
        (b'{"a":"hello"}', False),
        (b'{"a":1e999}', True),
        (b'{"\xff":1}', True),
        (b'"%b"' % (b"x" * LONGEST_COMPARED), True),
    ],
)
def test_a_body_that_cannot_be_compared_may_hold_anything(body: bytes, echoed: bool) -> None:
    assert echoed_in("the limit is 128000", 128_000, body) is echoed
