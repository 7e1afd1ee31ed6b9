"""Rules of counting: by model, by format, and of media, with a token a character."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from app.conversation.messages import History, Kind, Media, Message, ToolCall, unit_starts
from app.formats.messages import format as messages_format
from app.formats.messages.format import MESSAGES
from app.formats.responses import format as responses_format
from app.tokens import counting_rules as rules_module
from app.tokens.calibration import prior_for, whole_ratio
from app.tokens.counting_rules import (
    CLAUDE,
    GPT_4,
    GPT_4O,
    GPT_5,
    GPT_5_2,
    GPT_5_4,
    GPT_5_5,
    GPT_5_6,
    GUIDED,
    HIDING,
    O_SERIES,
    WHOLE,
    Area,
    CountingRules,
    Encrypted,
    Fit,
    OneByOne,
    Pages,
    Patches,
    Tiles,
    rules_for,
)
from app.tokens.estimate import (
    Count,
    Declarations,
    ResponseFormat,
    Tool,
    answer_tokens,
    byte_bound,
    declared_tokens,
    functions_text,
    is_answer,
    latest_turn,
    system_text,
    turn_reasoning_tokens,
    unit_tokens,
)

items, blocks = responses_format.token_rules, messages_format.token_rules

n = len
TOOL = Tool("look_up", "Look it up.", {"type": "object"})
TOOLS = Declarations(tools=(TOOL,))
HEADED = f"# Tools\n\n## functions\n\n{functions_text([TOOL])}"
FORMAT = ResponseFormat("Reply", "", {"type": "object"})
FORMAT_TEXT = '# Response Formats\n\n## Reply\n\n{"type":"object"}'
ASKED = Message(Kind.USER, "user", ("hi",), b"", b"")
ORDER = Message(Kind.INSTRUCTIONS, "system", ("be kind",), b"", b"")


def said(*texts: str, **members: Any) -> Message:
    return Message(Kind.ASSISTANT, "assistant", texts, b"", b"", **members)


def result(text: str, *ids: str) -> Message:
    return Message(Kind.RESULT, "user", (text,), b"", b"", answers=ids)


def estimate(messages: Sequence[Message], declarations: Declarations, rules: CountingRules, count: Count) -> int:
    messages = History(messages)
    starts = (*unit_starts(messages), len(messages))
    units = sum(sum(unit_tokens(messages[start:stop], rules, count)) for start, stop in pairwise(starts))
    holds_calls = any(message.calls for message in messages)
    tokens = units + declared_tokens(declarations, system_text(messages), holds_calls, rules, count)
    tokens += sum(map(is_answer, messages)) * answer_tokens(declarations, rules, count)
    return tokens + sum(turn_reasoning_tokens(message, rules, count) for message in messages[latest_turn(messages) :])


def beside(rules: CountingRules, declarations: Declarations, *messages: Message) -> int:
    """What is declared costs, beside the messages and what opens the reply."""
    return estimate(messages, declarations, rules, n) - estimate(messages, Declarations(), rules, n)


# OpenAI's models, item by item


@pytest.mark.parametrize("before", [(), (ORDER,)], ids=["alone", "behind instructions"])
@pytest.mark.parametrize(("model", "around"), [("gpt-4o", -3), ("gpt-5", 3), ("openai.gpt-5.6-luna", 3), ("o3", -3)])
def test_tools_cost_the_same_wherever_they_stand(before: tuple[Message, ...], model: str, around: int) -> None:
    assert beside(items(model), TOOLS, *before, ASKED) == n(HEADED) + around


def test_gpt_5_has_no_preamble_to_its_tools_item_by_item() -> None:
    chat, apart = (beside(rules, TOOLS, ASKED) for rules in (rules_for("gpt-5"), items("gpt-5")))
    assert chat - apart == 82


def test_a_call_costs_one_more_item_by_item() -> None:
    kept, unkept = (said(calls=(ToolCall("1", "f", "{}", kept=kept),)) for kept in (True, False))
    for model, unkept_more in (("gpt-4.1", -2), ("gpt-5.4", 1)):
        older = unit_tokens([kept], rules_for(model), n)[0]
        assert unit_tokens([unkept], rules_for(model), n)[0] == older
        assert unit_tokens([kept], items(model), n)[0] == older + 1
        assert unit_tokens([unkept], items(model), n)[0] == older + unkept_more


def test_tools_of_which_one_has_to_be_called_cost_gpt_5_more_item_by_item() -> None:
    required = replace(TOOLS, choice="required")
    for rules, more in ((items("gpt-5"), 8), (items("gpt-4.1"), 0), (rules_for("gpt-5"), 0)):
        assert beside(rules, required, ASKED) - beside(rules, TOOLS, ASKED) == more


@pytest.mark.parametrize("model", ["openai/gpt-5", "openrouter/openai/gpt-5.1"])
def test_a_router_asks_gpt_5_without_a_preamble_to_its_tools(model: str) -> None:
    assert beside(rules_for("gpt-5"), TOOLS, ASKED) - beside(rules_for(model), TOOLS, ASKED) == 82


def test_claude_is_not_shown_tools_that_it_may_not_call() -> None:
    for rules in (rules_for("anthropic/claude-opus-5"), blocks("claude-opus-5")):
        assert beside(rules, replace(TOOLS, choice="none"), ASKED) == 0


@pytest.mark.parametrize("tools", [(), (TOOL,)], ids=["no tools", "tools"])
@pytest.mark.parametrize(("model", "around"), [("gpt-4o", 1), ("gpt-5", 0)])
def test_a_schema_costs_its_text_and_earlier_answers_nothing(tools: tuple[Tool, ...], model: str, around: int) -> None:
    with_schema = Declarations(tools=tools, response_format=FORMAT)
    history = (ASKED, said("hello"), ASKED)
    without = beside(items(model), Declarations(tools=tools), *history)
    assert beside(items(model), with_schema, *history) - without == n(FORMAT_TEXT) + around


def test_encrypted_reasoning_costs_by_its_length_and_nothing_in_later_turns() -> None:
    rules, thought = items("gpt-5"), said(sealed=True, bound=True, encrypted=7_400)
    call = said(calls=(ToolCall("1", "f", "{}"),))
    open_turn = estimate((ASKED, thought, call, result("x", "1")), Declarations(), rules, n)
    assert open_turn - estimate((ASKED, call, result("x", "1")), Declarations(), rules, n) == 1_000
    over = (said("done"), ASKED)
    assert estimate((ASKED, thought, *over), Declarations(), rules, n) == estimate(
        (ASKED, *over), Declarations(), rules, n
    )


def test_what_the_provider_made_of_a_history_it_compacted_costs_in_every_turn() -> None:
    made = replace(ORDER, encrypted=7_400, sealed=True, texts=())
    rules = items("gpt-5")
    assert unit_tokens([made], rules, n) == (1_000,)
    assert unit_tokens([replace(made, encrypted=999)], rules, n) == (0,)
    assert estimate((made, ASKED), Declarations(), rules, n) - estimate((ASKED,), Declarations(), rules, n) == 1_000


def test_grok_reads_its_earlier_reasoning_again_and_has_a_preamble() -> None:
    rules, thought = items("grok-4.3"), said(sealed=True, encrypted=580)
    history = (ASKED, thought, said("done"), ASKED)
    assert estimate(history, Declarations(), rules, n) - estimate(history[2:], Declarations(), rules, n) == 100 + (
        estimate((ASKED,), Declarations(), rules, n) - rules.reply_prime
    )
    assert rules.reply_prime == rules_for("grok-4.3").reply_prime + 185
    assert (prior_for("grok-4.3", f"3/o200k_base/{WHOLE}", tools=True).offset) == 0


@pytest.mark.parametrize("model", ["gpt-oss-120b", "deepseek-v4-flash", "llama-3.3-70b"])
def test_what_has_a_template_of_its_own_counts_alike_in_every_format(model: str) -> None:
    assert replace(items(model), drops_reasoning=False) == blocks(model) == rules_for(model)


# Claude, block by block


def claude(model: str, tokens: int) -> int:
    """Its own tokens in those of an estimate."""
    return round(tokens / whole_ratio(model))


@pytest.mark.parametrize(
    ("model", "preamble", "must_call"),
    [
        ("claude-sonnet-4-5-20250929", 497, 589),
        ("claude-sonnet-4.6", 497, 589),
        ("claude-sonnet-4-20250514", 346, 313),
        ("us.anthropic.claude-3-5-haiku-20241022-v1:0", 264, 340),
        ("claude-3-opus-20240229", 530, 281),
        ("claude-opus-4-7", 675, 804),
        ("claude-opus-4-8", 290, 410),
        ("claude-opus-5", 286, 406),
        ("claude-sonnet-5", 354, 474),
    ],
)
def test_tools_stand_behind_the_preamble_that_is_told_of_the_model(model: str, preamble: int, must_call: int) -> None:
    text = f'"Look it up.", "look_up", {json.dumps(TOOL.parameters)}'
    rules = blocks(model)
    assert beside(rules, TOOLS, ASKED) == claude(model, preamble) + n(text)
    assert beside(rules, replace(TOOLS, must_call=True), ASKED) == claude(model, must_call) + n(text)


def test_calls_and_results_are_written_one_by_one() -> None:
    rules = replace(rules_for("claude-opus-4"), message=2, one_by_one=OneByOne(0, 0, call=20, result=10))
    caller = said("ok", calls=(ToolCall("1", "f", '{"a": 1}'), ToolCall("2", "g", "{}")))
    assert unit_tokens([caller, result("onetwo", "1", "2")], rules, n) == (
        2 + n("assistant") + n("ok") + 20 + n('f{"a": 1}') + 20 + n("g{}"),
        2 + n("user") + n("onetwo") + 2 * 10,
    )


def test_a_picture_costs_by_its_area_up_to_a_bound() -> None:
    picture = Area(750, 1_600)
    assert (picture.tokens(640, 480, ""), picture.tokens(8_000, 8_000, "high")) == (410, 1_600)
    shown = replace(ASKED, media=(Media("image", 10, "", 750, 100), Media("file", 10)))
    rules = replace(blocks("claude-opus-4"), pictures=picture, files=Pages(0, unknown=1_500))
    assert byte_bound([shown], rules) - byte_bound([ASKED], rules) == 100 + 1_500


@pytest.mark.parametrize(
    ("model", "forgets"),
    [
        ("claude-sonnet-4-5", True),
        ("claude-opus-4-1", True),
        ("claude-opus-4-5", False),
        ("claude-sonnet-4-6", False),
        ("claude-fable-5", False),
    ],
)
def test_thoughts_of_earlier_turns_cost_nothing_up_to_a_version(model: str, forgets: bool) -> None:
    rules, history = blocks(model), (ASKED, said("done", thoughts=("hmm hmm",), sealed=True), ASKED)
    plain = (ASKED, said("done"), ASKED)
    cost = estimate(history, Declarations(), rules, n) - estimate(plain, Declarations(), rules, n)
    assert cost == (0 if forgets else n("hmm hmm"))


def test_a_signature_tells_of_thoughts_that_are_not_shown() -> None:
    rules = replace(blocks("claude-opus-5"), encrypted=Encrypted(250, 5))
    assert unit_tokens([said("done", encrypted=1_250, sealed=True)], rules, n)[0] == (
        unit_tokens([said("done")], rules, n)[0] + 200
    )


def test_a_tool_with_a_schema_without_an_end_is_counted_without_it() -> None:
    endless: dict[str, Any] = {}
    for _ in range(100_000):
        endless = {"items": endless}
    rules = blocks("claude-opus-5")
    deep, flat = (Declarations(tools=(Tool("f", "", schema),)) for schema in (endless, {}))
    assert beside(rules, deep, ASKED) <= beside(rules, flat, ASKED)


# Both


@pytest.mark.parametrize(("model", "ratio"), [("claude-sonnet-4-6", 1.12), ("claude-opus-4-7", 1.40), ("claude", 1.40)])
def test_where_the_estimate_holds_the_fixed_parts_a_prior_is_a_ratio_alone(model: str, ratio: float) -> None:
    for tools in (False, True):
        prior = prior_for(model, f"3/o200k_base/{WHOLE}", tools)
        assert (prior.ratio, prior.offset) == (ratio, 0)
        assert prior_for(model, "3/o200k_base", tools).ratio != ratio


def test_a_request_to_claude_is_read_as_it_is_counted() -> None:
    assert MESSAGES.token_rules("claude-opus-5") == blocks("claude-opus-5")
    tools = [{"name": "f", "input_schema": {}}]
    body = {"model": "claude-opus-5", "max_tokens": 9, "messages": [], "tools": tools}
    for choice, must_call in (("auto", False), ("any", True), ("tool", True)):
        request = MESSAGES.read(json.dumps(body | {"tool_choice": {"type": choice, "name": "f"}}).encode())
        assert request.declarations().must_call is must_call
    thinking = [{"type": "thinking", "thinking": "", "signature": "abc"}, {"type": "redacted_thinking", "data": "de"}]
    read = MESSAGES.message(json.dumps({"role": "assistant", "content": thinking}).encode()).message
    assert read.encrypted == 5


# Families of models

FAMILIES: list[tuple[CountingRules, str]] = [
    (GPT_4, "gpt-4 gpt-4-0613 gpt-4-turbo-2024-04-09 openai/gpt-3.5-turbo gpt-35-turbo ft:gpt-3.5-turbo-0125:org::id"),
    (GPT_4O, "gpt-4o gpt-4o-2024-08-06 gpt-4.1 gpt-4.5-preview chatgpt-4o-latest gpt-oss:20b grok-4 house-model"),
    (O_SERIES, "o1 azure/o3-mini-2025-01-31"),
    (GPT_5, "gpt-5 gpt-5-2025-08-07 gpt-5-chat-latest gpt-5-codex gpt-5.1-2025-11-13 gpt-5.1-codex-max azure/gpt-5"),
    (GPT_5_2, "gpt-5.2-2025-12-11 gpt-5.3-codex gpt-5.4-mini-2026-03-17 gpt-5.4-nano"),
    (GPT_5_4, "gpt-5.4-2026-03-05"),
    (GPT_5_5, "gpt-5.5-2026-08-01"),
    (replace(GPT_5_5, tools_alone=3), "openai/gpt-5.5"),
    (GPT_5_6, "gpt-5.6-sol gpt-5.10 gpt-6"),
    (CLAUDE, "anthropic/claude-sonnet-4 us.anthropic.claude-opus-4-20250514-v1:0"),
    (GUIDED, "llama-3.3-70b Qwen/Qwen3-0.6B"),
    (HIDING, "deepseek-ai/DeepSeek-R1 deepseek-r1-distill-llama-70b mistral-large-latest"),
]


@pytest.mark.parametrize(("rules", "model"), [(rules, model) for rules, each in FAMILIES for model in each.split()])
def test_a_models_family_is_found_behind_routers_dates_and_fine_tunes(rules: CountingRules, model: str) -> None:
    assert rules_for(model) == rules


@pytest.mark.parametrize(
    ("host", "hidden"),
    [
        ("api.groq.com", True),
        ("router.huggingface.co", True),
        ("api.openai.com", False),
        ("notgroq.com", False),
        ("", False),
    ],
)
def test_some_hosts_hide_tools_that_may_not_be_called_whatever_the_model(host: str, hidden: bool) -> None:
    assert rules_for("gpt-oss-120b", host).hides_tools is hidden
    assert rules_for("deepseek-chat", host).hides_tools


# Pictures, recordings and files

TILES = Tiles(85, 170)


def media_tokens(media: Media, pictures: Tiles | Patches | Area, **rules: Any) -> int:
    return rules_module.media_tokens(media, CountingRules(pictures, **rules), n)


PATCHES = Patches(162, 2, Fit(1_536, 2_048))
LEVELS = Patches(120, 4, Fit(2_500, 2_048), Fit(10_000, 6_000), low=True)


def picture(width: int, height: int, detail: str = "") -> Media:
    return Media("image", 5_000_000, detail, width, height)


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [
        (1, 1, 1),
        (512, 512, 1),
        (640, 480, 2),
        (1_024, 1_024, 4),  # its short side becomes 768
        (2_048, 4_096, 6),  # fitted to 1024 x 2048, then to 768 x 1536
        (8_192, 4, 4),  # fitted to 2048 x 1
        (1_000_000, 1, 4),
    ],
)
def test_tiles_are_counted_after_scaling_down(width: int, height: int, tiles: int) -> None:
    assert media_tokens(picture(width, height), TILES) == 85 + 170 * tiles
    assert media_tokens(picture(height, width, "high"), TILES) == 85 + 170 * tiles
    assert media_tokens(picture(width, height, "low"), TILES) == 85


@pytest.mark.parametrize(
    ("width", "height", "patches"),
    [
        (1, 1, 1),
        (640, 480, 300),
        (1_024, 1_024, 1_024),
        (1_800, 2_400, 1_452),  # scaled to 1056 x 1408: 33 x 44
        (3_000, 600, 832),  # its long side becomes 2048
        (100_000, 1, 64),
    ],
)
def test_patches_are_counted_after_scaling_to_at_most_1536(width: int, height: int, patches: int) -> None:
    assert media_tokens(picture(width, height), PATCHES) == patches * 162 // 100 + 2
    assert media_tokens(picture(width, height, "low"), PATCHES) == media_tokens(picture(width, height), PATCHES)


@pytest.mark.parametrize(
    ("detail", "patches", "auto_original"),
    [
        ("low", 16 * 12, 16 * 12),  # 512 x 384
        ("high", 57 * 43, 57 * 43),  # 1824 x 1368
        ("", 57 * 43, 115 * 86),
        ("auto", 57 * 43, 115 * 86),
        ("original", 115 * 86, 115 * 86),
    ],
)
def test_a_level_of_detail_says_how_far_patches_are_scaled_down(detail: str, patches: int, auto_original: int) -> None:
    for auto, expected in ((False, patches), (True, auto_original)):
        levels = Patches(100, 0, LEVELS.high, LEVELS.original, low=True, auto_original=auto)
        assert media_tokens(picture(8_000, 6_000, detail), levels) == expected


def test_a_small_picture_costs_what_it_covers_at_every_level() -> None:
    for detail in ("", "low", "high", "original"):
        assert media_tokens(picture(60, 30, detail), LEVELS) == 2 * 120 // 100 + 4


def test_a_picture_of_unknown_size_is_taken_for_1024_pixels_square() -> None:
    for unknown in (picture(0, 0), picture(640, 0), picture(0, 480)):
        assert media_tokens(unknown, TILES) == 765
        assert media_tokens(unknown, PATCHES) == 1_024 * 162 // 100 + 2


PICTURES: list[tuple[int, int, str]] = [
    (85 + 2 * 170, 85, "gpt-4o-2024-08-06 gpt-4.1"),
    (2_833 + 2 * 5_667, 2_833, "gpt-4o-mini ft:gpt-4o-mini:org::id"),
    (70 + 2 * 140, 70, "gpt-5 gpt-5.1"),
    (75 + 2 * 150, 75, "o3"),
    (20 * 15 * 162 // 100 + 2, 20 * 15 * 162 // 100 + 2, "gpt-4.1-mini"),
    (20 * 15 * 246 // 100 + 2, 20 * 15 * 246 // 100 + 2, "gpt-4.1-nano"),
    (20 * 15 * 172 // 100 + 1, 20 * 15 * 172 // 100 + 1, "o4-mini"),
    (20 * 15 * 120 // 100 + 1, 20 * 15 * 120 // 100 + 1, "gpt-5-mini gpt-5.1-codex-mini"),
    (20 * 15 * 150 // 100 + 1, 20 * 15 * 150 // 100 + 1, "gpt-5-nano"),
    (20 * 15 * 120 // 100 + 2, 16 * 12 * 120 // 100 + 2, "gpt-5.2 gpt-5.4 gpt-5.4-nano"),
    (20 * 15 * 120 // 100 + 4, 16 * 12 * 120 // 100 + 4, "gpt-5.5 gpt-5.6-sol"),
]
"""Tokens of 640 x 480 pixels by model, and with little detail."""


@pytest.mark.parametrize(
    ("tokens", "low", "model"), [(*sizes, model) for *sizes, models in PICTURES for model in models.split()]
)
def test_a_picture_costs_by_the_rules_of_its_model(tokens: int, low: int, model: str) -> None:
    costs = [media_tokens(picture(640, 480, detail), rules_for(model).pictures) for detail in ("", "high", "low")]
    assert costs == [tokens, tokens, low]


PAGES, AUDIO, FILE = Pages(100, file=5), Media("audio", 9_999_999, seconds=6.96), Media("file", 10)
OTHER_MEDIA: dict[str, tuple[Media, dict[str, Any], int]] = {
    "a recording: ten a second and four": (AUDIO, {}, 69 + 4),
    "a scale, which is of pictures alone": (AUDIO, {"picture_scale": 2.0}, 69 + 4),
    "a file of which nothing is known": (FILE, {"picture_scale": 2.0, "files": Pages(0)}, 1_000),
    "the same where pages have a price": (FILE, {"files": PAGES}, 1_000),
    "a kind that is not known": (Media("video", 10), {"files": Pages(0)}, 1_000),
    "pages with glyphs": (replace(FILE, pages=3, glyphs=380), {"files": PAGES}, 5 + 3 * 100 + 100),
    "a file of text": (replace(FILE, text="one two"), {"files": PAGES}, 5 + len("one two")),
    "a picture, scaled": (picture(640, 480), {"picture_scale": 2.0}, 2 * 425),
    "and scaled down": (picture(640, 480), {"picture_scale": 0.1}, 42),
}


@pytest.mark.parametrize(("media", "options", "tokens"), OTHER_MEDIA.values(), ids=OTHER_MEDIA)
def test_tokens_of(media: Media, options: dict[str, Any], tokens: int) -> None:
    assert media_tokens(media, TILES, **options) == tokens


def test_a_page_may_cost_by_its_size_up_to_a_bound() -> None:
    pages = Pages(1_570, tokens_per_point=4 / 750)
    for (width, height), page in {(200, 200): 213, (612, 792): 1_570, (0, 0): 1_570}.items():
        file = Media("file", 10, width=width, height=height, pages=100)
        assert media_tokens(file, TILES, files=pages) == 100 * page
