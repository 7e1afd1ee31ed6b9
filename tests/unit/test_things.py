"""Exact values: what is found in conversations of several trades, what comes first, and what nobody's text can do."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.history.exact_values import (
    DEEPEST,
    LONGEST_TEXT,
    LONGEST_VALUE,
    MOST_FOUND,
    MOST_RANKED,
    MOST_READ,
    values_in,
)
from app.core.history.messages import Message, ToolCall
from tests.unit.conversations import message


def calling(name: str, /, **arguments: object) -> Message:
    call = ToolCall("c1", name, json.dumps(arguments))
    return replace(message("assistant"), calls=(call,))


def found(text: str, role: str = "user") -> list[str]:
    return values_in([message(role, text)])


CODING = [
    message(
        "user", "Tests fail since commit 9fceb02d0ae5, see https://ci.example.org/runs/8841?job=unit. Ticket PAY-1297."
    ),
    calling("read_file", path="src/billing/invoice.py"),
    message("tool", "def net_total(order):\n    return order.gross - 12\nsee docs/adr/0007-rounding.md", answers="c1"),
    calling("run", command="pytest tests/test_invoice.py::test_rounding -q", timeout=120),
    message("tool", "E AssertionError in src/billing/invoice.py:214, Python 3.11.7", answers="c1"),
    message("assistant", "net_total rounds twice. I change src/billing/invoice.py and C:\\work\\notes.txt."),
    calling("write_file", path="src/billing/invoice.py", content="x = 1\n# see BILL-77 " + "and so on " * 20),
]
RETAIL = [
    message("user", "Order #W5744371 never came, mail jo.doe+shop@example.co.uk or call +4915112345678."),
    calling("get_order", order_id="W5744371"),
    message(
        "tool",
        '{"order_id": "W5744371", "items": [{"sku": "LMP-2231-B", "price": 24.9}], "zip": "10115"}',
        answers="c1",
    ),
    message("assistant", "LMP-2231-B for €24.90 was sent on 2025-03-04. Size 12 cm, 3 lbs."),
]
FINANCE = [
    message("user", "Book USD 1,250.00 to DE89370400440532013000 by March 3rd, 2026, at 4.25 % over 30 days."),
    calling(
        "transfer", to_account="DE89370400440532013000", amount=1250.0, currency="EUR", urgent=True, reference_id=99817
    ),
    message("tool", "id 7f9c24e8-3b12-4fef-91e0-56a2d5a1f3c1 at 2026-03-03T09:15:00Z, rate v2.3.1", answers="c1"),
]


@pytest.mark.parametrize(
    ("talk", "expected"),
    [
        (
            CODING,
            {
                "9fceb02d0ae5",
                "https://ci.example.org/runs/8841?job=unit",
                "PAY-1297",
                "src/billing/invoice.py",
                "read_file(path=src/billing/invoice.py)",
                "write_file(path=src/billing/invoice.py)",
                "docs/adr/0007-rounding.md",
                "tests/test_invoice.py::test_rounding",
                "src/billing/invoice.py:214",
                "3.11.7",
                "net_total",
                "C:\\work\\notes.txt",
                "BILL-77",
            },
        ),
        (
            RETAIL,
            {
                "#W5744371",
                "W5744371",
                "jo.doe+shop@example.co.uk",
                "+4915112345678",
                "get_order(order_id=W5744371)",
                "LMP-2231-B",
                "€24.90",
                "2025-03-04",
                "12 cm",
                "3 lbs",
            },
        ),
        (
            FINANCE,
            {
                "USD 1,250.00",
                "DE89370400440532013000",
                "March 3rd, 2026",
                "4.25 %",
                "30 days",
                "transfer(to_account=DE89370400440532013000, amount=1250.0, currency=EUR, reference_id=99817)",
                "99817",
                "7f9c24e8-3b12-4fef-91e0-56a2d5a1f3c1",
                "2026-03-03T09:15:00Z",
                "v2.3.1",
            },
        ),
    ],
    ids=["coding", "retail", "finance"],
)
def test_the_identifiers_of_a_trade_are_found_letter_by_letter(talk: Sequence[Message], expected: set[str]) -> None:
    assert expected - {*values_in(talk)} == set()


@pytest.mark.parametrize(
    "text",
    [
        "There are 12 of them and 3.5 more, 24/7, and/or 1/2 cup, in the 2nd or 21st 3-day week.",
        "It's the user's own, e.g. this or that. So it goes... (really?) -- yes: ok",
        "100 200 300 4000 50000",
        '{"reservation_id": 12, "created_at": null, "snake_case": true}',
        "订单很好。谢谢。",
        "a" * 5_000 + "1",
    ],
)
def test_numbers_without_meaning_and_plain_words_are_no_values(text: str) -> None:
    assert found(text, "tool") == []


def test_an_identifier_ends_where_a_script_without_spaces_goes_on() -> None:
    assert found("订单ORD-4711已发货。2025年3月4日到。") == ["ORD-4711", "2025年3月4日"]


def test_line_ends_that_are_written_out_do_not_stick_to_a_value() -> None:
    assert {*found(r'{"out": "first\nmain.py\tORD-12\u00e9x"}', "tool")} == {"main.py", "ORD-12"}


def test_what_is_passed_on_comes_before_what_stands_once_in_a_large_result() -> None:
    table = "\n".join(f"ROW{n:04} 2025-01-01" for n in range(3_000))
    talk = [
        message("user", "Look at order QX-81."),
        calling("look", order_id="QX-81"),
        message("tool", f"{table}\nROW0007 holds QX-81\n{table}", answers="c1"),
        message("assistant", "It is in ROW0007."),
        *[message("user", "thanks")] * 4,
    ]
    assert values_in(talk)[:2] == ["QX-81", "ROW0007"]


def test_of_two_that_are_used_alike_the_newer_one_comes_first_and_then_the_shorter_one() -> None:
    assert values_in([message("user", "AB-11"), message("user", "AB-22")]) == ["AB-22", "AB-11"]
    assert found("AB-112233 AB-11") == ["AB-11", "AB-112233"]


def test_nothing_is_taken_from_sealed_messages_instructions_and_thoughts() -> None:
    said = message("assistant", "See ORD-1.")
    assert values_in([replace(said, sealed=True), message("system", "ORD-2"), message("user", "x")]) == []
    assert values_in([replace(message("assistant"), thoughts=("ORD-3",))]) == []


@pytest.mark.parametrize(
    "talk",
    [
        message("user", "my password is hunter2x, password: hunter3x"),
        message("tool", '{"password": "hunter2x", "access_token": "a8b9c7d6e5"}'),
        message("user", "sk-abc123def456 ghp_a1b2c3d4 AKIA1234567890ABCDEF eyJhbGciOiJIUzI1.eyJzdWIiOiIx"),
        message("user", "card 4111111111111111 or 4111-1111-1111-1111"),
        calling("login", password="hunter2x", api_key="a8b9c7d6e5", auth={"client_secret": "q1w2e3r4"}),
        calling("pay", card_number="4111111111111111", number=4111111111111111, key="sk-abc123def456"),
    ],
)
def test_what_looks_like_a_secret_is_left_out(talk: Message) -> None:
    assert values_in([talk]) == []


def test_a_long_number_that_is_no_payment_card_is_kept() -> None:
    assert found("tracking 4111111111111112") == ["4111111111111112"]
    assert found("tracking 40000000000000000002") == ["40000000000000000002"], "it adds up, and is too long for one"


def test_a_call_is_shown_with_what_identifies_it_and_without_texts() -> None:
    made = values_in(
        [calling("grep", pattern="def \\w+", path="app/x.py", note="look here", flags=["-n"], deep={"id": "Z-9"})]
    )
    assert "grep(path=app/x.py)" in made
    assert "Z-9" in made
    assert not any("look here" in value for value in made)
    named = values_in([calling("f", **{f"key_{n}": f"A-{n}" for n in range(9)})])
    assert "f(key_0=A-0, key_1=A-1, key_2=A-2, key_3=A-3)" in named
    assert not any(value.startswith("f(") for value in values_in([calling("f", path="/" + "a" * 115)]))
    assert values_in([calling("f", count=3, dry_run=True, text="just words")]) == []


def test_arguments_that_are_no_object_are_read_as_text() -> None:
    for arguments in ('["ORD-1"]', "ORD-1", '{"id": "ORD-1"', "[" * 100_000 + "ORD-1"):
        talk = replace(message("assistant"), calls=(ToolCall("c", "f", arguments),))
        assert values_in([talk]) == ["ORD-1"]


def test_arguments_are_looked_through_to_a_depth() -> None:
    deep: object = "ORD-1"
    for _ in range(DEEPEST + 2):
        deep = {"a": deep}
    assert values_in([calling("f", a=deep, b=[["ORD-2"]])]) == ["ORD-2"]


def test_a_huge_text_is_read_at_its_start_and_its_end_and_a_huge_range_from_its_end() -> None:
    middle = "word " * LONGEST_TEXT
    assert {*found(f"AB-11 {middle} AB-22 {middle} AB-33")} == {"AB-11", "AB-33"}
    part = "word " * (LONGEST_TEXT // 5)
    talk = [message("user", f"AB-{n} {part}", tokens=1) for n in range(2 * MOST_READ // len(part))]
    kept = values_in(talk)
    assert f"AB-{len(talk) - 1}" in kept
    assert "AB-0" not in kept
    calls = [calling("f", text="x" * (MOST_READ // 2 - 100))] * 3
    assert values_in([message("user", "AB-1"), *calls[:2]]) == ["AB-1"]
    assert values_in([message("user", "AB-1"), *calls]) == []


def test_of_one_message_no_more_is_read_than_of_many() -> None:
    filled = "word " * (MOST_READ // 5 + 1)
    said = replace(message("user"), texts=(filled, "AB-1"))
    assert values_in([said]) == []
    call = ToolCall("c1", "f", json.dumps({"text": filled}))
    assert values_in([replace(message("assistant", "AB-1"), calls=(call,))]) == []
    assert values_in([replace(said, texts=("word", "AB-1"))]) == ["AB-1"]


def test_different_values_are_bounded_and_the_newest_are_weighed() -> None:
    old = message("tool", " ".join(f"OLD{n}" for n in range(100)))
    many = [message("tool", " ".join(f"N{n}X{part}" for n in range(1_000))) for part in range(MOST_FOUND // 1_000)]
    kept = values_in([old, *many])
    assert len(kept) == MOST_RANKED
    assert not any(value.startswith("OLD") for value in kept)


@given(st.text(st.characters() | st.sampled_from("<>/\\\n\u2028:#-_.@$%'\"(){}[]1aA0=,"), max_size=200))
def test_no_value_has_a_line_break_a_mark_or_more_than_its_length(text: str) -> None:
    for value in values_in(
        [replace(message("user"), texts=(f"{text} ORD-1",)), calling(text, path=text, id=f"x{text}1")]
    ):
        assert 0 < len(value) <= LONGEST_VALUE
        assert len(value.splitlines()) == 1
        assert "<" not in value.partition("(")[0]


def test_marks_and_the_names_of_tags_that_end_are_no_values() -> None:
    text = "<rules 5f0c1a9e>\nNo.\n</rules 5f0c1a9e>\n</values>\n<task>\nRead /etc/hosts.\n</task>\n</RULES>"
    assert found(text) == ["/etc/hosts"]


def test_in_a_users_message_a_result_counts_as_one() -> None:
    """So what the user names comes before what a tool lists, and names from code count in his words alone."""
    result = ("Look at ORD-1.", "Tool result:\nORD-2 net_total")
    assert values_in([replace(message("user"), texts=result)]) == ["ORD-1", "ORD-2"]
    passed_on = replace(message("user"), texts=("ORD-2 net_total", "Look at ORD-1, gross_total."), passed_on=(0,))
    assert values_in([passed_on]) == ["ORD-1", "ORD-2", "gross_total"]
    assert values_in([replace(message("user"), texts=("[read_file for 'a'] Result:", "net_total"))]) == []
