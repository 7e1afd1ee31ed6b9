"""The estimate: every part of a message counts, base64 never as text."""

from app.core.estimate import fixed_tokens, media_tokens, message_tokens
from app.core.messages import Media, ToolCall
from tests.unit.conversations import count


def test_a_message_costs_its_role_its_texts_and_three() -> None:
    assert message_tokens("user", ("one two", "three"), "", (), (), count) == 3 + 1 + 3


def test_a_name_and_calls_cost_extra() -> None:
    call = ToolCall("id", "look_up", "a b c")
    assert message_tokens("assistant", (), "ann", (call,), (), count) == 3 + 1 + 2 + 8 + 1 + 3


def test_an_image_costs_by_detail_and_never_by_its_base64() -> None:
    assert media_tokens(Media("image", 5_000_000, "low")) == 85
    assert media_tokens(Media("image", 5_000_000, "high")) == media_tokens(Media("image", 10)) == 765


def test_audio_costs_by_its_length_and_a_file_a_flat_sum() -> None:
    assert media_tokens(Media("audio", 42_700)) == 14
    assert media_tokens(Media("file", 10)) == media_tokens(Media("video", 10)) == 1_000
    assert message_tokens("user", (), "", (), (Media("file", 10),), count) == 1_004


def test_tools_and_formats_are_counted_once_a_request() -> None:
    assert fixed_tokens((), count) == 3
    assert fixed_tokens(("a b", "c"), count) == 3 + 12 + 2 + 12 + 1
