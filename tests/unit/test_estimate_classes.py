"""The estimate of whole requests, class by class as recorded prompts are scored (docs/estimates.md), with real tables.

Each expected number is the sum of exactly the texts that a model is sent, as the rules say, and not worked out by the
code under test.
"""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from app.tokens.tables import TABLES
from app.tokens.tokenizer import Tokenizer
from lab.benchmarks.accuracy import steno as estimated

FETCHED = Path(__file__).parents[2] / ".tables"
pytestmark = pytest.mark.skipif(
    not all((FETCHED / name).is_file() for name, _ in TABLES.values()), reason="tokenizer tables are fetched at set-up"
)

SYSTEM = "You watch over the lighthouse. Answer like a sailor."
USER = "Which ships passed the Kl\u00f6ntal light between 4:15 and 6:30?"


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer(FETCHED)


def n(text: str) -> int:
    return tokenizer().counter("o200k_base")(text)


def n_old(text: str) -> int:
    """By the table of gpt-4 and gpt-3.5."""
    return tokenizer().counter("cl100k_base")(text)


def request(*messages: dict[str, Any], model: str = "gpt-4o-2024-08-06", **members: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages), **members}


def said(role: str, content: Any, **members: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **members}


def called(*functions: tuple[str, str]) -> dict[str, Any]:
    """An assistant's message with calls: names and arguments."""
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(functions)
    ]
    return said("assistant", None, tool_calls=calls)


def result(number: int, text: Any) -> dict[str, Any]:
    return said("tool", text, tool_call_id=f"call_{number}")


SYSTEM_AND_USER = said("system", SYSTEM), said("user", USER)


def beginning() -> int:
    """What these two cost."""
    return 3 + n("system") + n(SYSTEM) + 3 + n("user") + n(USER)


# text, multi-turn, names, json_object


def test_text() -> None:
    assert estimated(request(*SYSTEM_AND_USER)) == beginning() + 3


def test_text_of_the_older_table() -> None:
    expected = 3 + n_old("user") + n_old(USER) + 3
    assert n(USER) != n_old(USER)
    for model in ("gpt-3.5-turbo", "openai/gpt-4-0613", "gpt-4-turbo", "ft:gpt-3.5-turbo-0125:harbour::a1"):
        assert estimated(request(said("user", USER), model=model)) == expected


def test_text_in_parts() -> None:
    parts = [{"type": "text", "text": "Two ships. "}, {"type": "text", "text": "One buoy."}]
    assert estimated(request(said("developer", parts))) == 3 + n("developer") + n("Two ships. ") + n("One buoy.") + 3


def test_multi_turn() -> None:
    talk = said("user", "Fog?"), said("assistant", "Aye, since dawn."), said("user", "And wind?")
    expected = 3 + n("user") + n("Fog?") + 3 + n("assistant") + n("Aye, since dawn.") + 3 + n("user") + n("And wind?")
    assert estimated(request(*talk)) == expected + 3


def test_names() -> None:
    messages = said("user", "Ahoy!", name="first_mate"), said("assistant", "Ahoy.", name="assistant")
    expected = 3 + n("user") + n("Ahoy!") + n("first_mate") + 1 + 3 + n("assistant") + n("Ahoy.") + 1
    assert estimated(request(*messages)) == expected + 3


def test_json_object() -> None:
    assert estimated(request(*SYSTEM_AND_USER, response_format={"type": "json_object"})) == beginning() + 3


# tools, functions-legacy

FIND_SHIPS = {
    "name": "find_ships",
    "description": "Finds ships.\nNewest first.",
    "parameters": {
        "type": "object",
        "properties": {
            "harbour": {"type": "string", "description": "Where it lies", "default": "Aal"},
            "draughts": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "flag": {"type": "string", "enum": ["red", "green"], "default": "red"},
            "hull": {"$ref": "#/$defs/Hull"},
            "notes": {
                "type": "array",
                "items": {"type": ["string", "null"]},
                "title": "Notes",
                "description": "If any",
            },
        },
        "required": ["harbour"],
        "additionalProperties": False,
        "$defs": {
            "Hull": {"type": "object", "properties": {"beam": {"type": "number"}, "steel": {"const": True}}},
        },
    },
}
SOUND_HORN = {"name": "sound_horn", "description": "Sounds the horn.", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": function, "strict": True} for function in (FIND_SHIPS, SOUND_HORN)]
TOOLS_TEXT = """\
# Tools

## functions

namespace functions {

// Finds ships.
// Newest first.
type find_ships = (_: {
// Where it lies
harbour: string, // default: "Aal"
draughts?: number[],
flag?: "red" | "green", // default: red
hull?: { beam?: number, steel?: true },
// Notes
//
// If any
notes?: (string | null)[],
}) => any;

// Sounds the horn.
type sound_horn = () => any;

} // namespace functions"""


def test_tools_behind_a_system_message() -> None:
    tools = n(f"{SYSTEM}\n\n{TOOLS_TEXT}") - n(SYSTEM) - 1
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "required", "parallel_tool_calls": False}):
        assert estimated(request(*SYSTEM_AND_USER, tools=TOOLS, **choice)) == beginning() + tools + 3


def test_tools_alone() -> None:
    assert estimated(request(said("user", USER), tools=TOOLS)) == 3 + n("user") + n(USER) + n(TOOLS_TEXT) + 3 + 3


def test_tools_of_which_none_or_one_is_chosen() -> None:
    without = 3 + n("user") + n(USER) + n(TOOLS_TEXT) + 3 + 3
    named = {"type": "function", "function": {"name": "sound_horn"}}
    assert estimated(request(said("user", USER), tools=TOOLS, tool_choice="none")) == without + 1
    assert estimated(request(said("user", USER), tools=TOOLS, tool_choice=named)) == without + n("sound_horn") + 7


def test_functions_legacy() -> None:
    messages = (
        said("user", USER),
        said("assistant", None, function_call={"name": "sound_horn", "arguments": '{ "long": true }'}),
        said("function", "It sounded.", name="sound_horn"),
    )
    body = request(
        *messages, model="gpt-3.5-turbo", functions=[FIND_SHIPS, SOUND_HORN], function_call={"name": "find_ships"}
    )
    expected = 3 + n_old("user") + n_old(USER)
    expected += 3 + n_old("assistant") + n_old("sound_horn") + n_old('{ "long": true }') + 3
    expected += 2 + n_old("function") + n_old("It sounded.") + n_old("sound_horn")
    expected += n_old(TOOLS_TEXT) + 3 + n_old("find_ships") + 4
    assert estimated(body) == expected + 3


# calls-single, calls-parallel


def test_calls_single() -> None:
    messages = called(("find_ships", '{ "harbour": "Kl\\u00f6ntal" }')), result(0, [{"type": "text", "text": "Gull."}])
    expected = beginning() + 3 + n("assistant") + n("functions.find_ships") + n('{"harbour":"Kl\u00f6ntal"}') + 2
    expected += 3 + n("tool") + n("Gull.") + n("find_ships") + 2
    assert estimated(request(*SYSTEM_AND_USER, *messages)) == expected + 3


def test_calls_parallel() -> None:
    calls = called(("find_ships", '{"harbour": "Aal"}'), ("sound_horn", "{}"))
    uses = (
        '{"tool_uses":[{"recipient_name":"functions.find_ships","parameters":{"harbour":"Aal"}},'
        '{"recipient_name":"functions.sound_horn","parameters":{}}]}'
    )
    results = '["Gull \\"II\\"\\nand M\u00f6we", "It sounded."]'
    expected = beginning() + 3 + n("assistant") + n(uses) + n(results) + 16
    messages = calls, result(0, 'Gull "II"\nand M\u00f6we'), result(1, "It sounded.")
    assert estimated(request(*SYSTEM_AND_USER, *messages)) == expected + 3


def test_calls_parallel_that_are_not_answered_yet() -> None:
    calls = called(("sound_horn", "{}"), ("sound_horn", "{}"))
    use = '{"recipient_name":"functions.sound_horn","parameters":{}}'
    expected = beginning() + 3 + n("assistant") + n(f'{{"tool_uses":[{use},{use}]}}') + 8
    assert estimated(request(*SYSTEM_AND_USER, calls)) == expected + 3


# json_schema

SCHEMA = {
    "title": "Sch\u00e4tzung",
    "type": "object",
    "properties": {
        "ships": {"type": "array", "items": {"$ref": "#/$defs/Ship"}, "minItems": 1, "maxItems": 9},
        "default": {"type": "integer", "minimum": 0, "maximum": 7, "default": 3},
    },
    "required": ["ships", "default"],
    "additionalProperties": False,
    "$defs": {"Ship": {"type": "string", "description": "Its name"}},
}
FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "harbour_report", "description": "Of the night.", "strict": True, "schema": SCHEMA},
}
FORMAT_TEXT = """\
# Response Formats

## harbour_report

// Of the night.
{"title":"Sch\\u00e4tzung","type":"object","properties":{"ships":{"type":"array","items":{"$ref":"#/$defs/Ship"}},\
"default":{"type":"integer"}},"$defs":{"Ship":{"type":"string","description":"Its name"}}}"""


def test_json_schema_behind_a_system_message() -> None:
    expected = beginning() + n(f"{SYSTEM}\n\n{FORMAT_TEXT}") - n(SYSTEM) + n("harbour_report") + 2
    assert estimated(request(*SYSTEM_AND_USER, response_format=FORMAT)) == expected + 3


def test_json_schema_alone() -> None:
    expected = 3 + n("user") + n(USER) + n(FORMAT_TEXT) + 4 + n("harbour_report") + 2
    assert estimated(request(said("user", USER), response_format=FORMAT)) == expected + 3


def test_json_schema_is_named_at_every_answer() -> None:
    more = said("assistant", '{"ships":[]}'), said("user", "Sure?")
    expected = beginning() + n(f"{SYSTEM}\n\n{FORMAT_TEXT}") - n(SYSTEM) + n("harbour_report") + 2
    expected += 3 + n("assistant") + n('{"ships":[]}') + n("harbour_report") + 2 + 3 + n("user") + n("Sure?")
    assert estimated(request(*SYSTEM_AND_USER, *more, response_format=FORMAT)) == expected + 3


def test_json_schema_beside_tools() -> None:
    expected = beginning() + n(f"{SYSTEM}\n\n{TOOLS_TEXT}") - n(SYSTEM) - 1 + n(FORMAT_TEXT) + 1
    assert estimated(request(*SYSTEM_AND_USER, tools=TOOLS, response_format=FORMAT)) == expected + 3


# reasoning-text, reasoning-tools, reasoning-calls


@pytest.mark.parametrize("model", ["o1-2024-12-17", "o3-mini", "o4-mini", "gpt-5-mini", "gpt-5.2-chat-latest"])
def test_reasoning_text(model: str) -> None:
    assert estimated(request(*SYSTEM_AND_USER, model=model, reasoning_effort="low")) == beginning() + 2


def test_reasoning_multi_turn() -> None:
    talk = said("user", "Fog?"), said("assistant", "Aye, since dawn."), said("user", "And wind?")
    without_model = sum(3 + n(message["role"]) + n(message["content"]) for message in talk) + 2
    assert estimated(request(*talk, model="gpt-5.4")) == without_model + 2
    assert estimated(request(*talk, model="o3")) == without_model


def test_reasoning_json_schema() -> None:
    expected = beginning() + n(f"{SYSTEM}\n\n{FORMAT_TEXT}") - n(SYSTEM) + 2
    assert estimated(request(*SYSTEM_AND_USER, model="gpt-5-mini", response_format=FORMAT)) == expected


def test_thinking() -> None:
    thought = [{"type": "thinking", "thinking": "Fog means horns."}, {"type": "text", "text": "Aye."}]
    expected = beginning() + 3 + n("assistant") + n("Fog means horns.") + n("Aye.") + 3
    assert estimated(request(*SYSTEM_AND_USER, said("assistant", thought), model="claude-sonnet-4")) == expected


def test_tools_that_may_not_be_called_on_other_providers() -> None:
    plain = request(*SYSTEM_AND_USER, model="deepseek-chat")
    assert estimated({**plain, "tools": TOOLS, "tool_choice": "none"}) == estimated(plain)
    assert estimated({**plain, "tools": TOOLS}) > estimated(plain)


def test_reasoning_tools() -> None:
    user = 3 + n("user") + n(USER)
    alone = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sound_horn"}}}
    assert estimated(request(said("user", USER), model="gpt-5", **alone)) == user + n(TOOLS_TEXT) + 85 + 2
    assert estimated(request(*SYSTEM_AND_USER, model="gpt-5", tools=TOOLS)) == beginning() + n(TOOLS_TEXT) + 85 + 2
    assert estimated(request(said("user", USER), model="o3", tools=TOOLS)) == user + n(TOOLS_TEXT) + 4 + 2


def test_reasoning_tools_of_which_the_first_says_nothing() -> None:
    silent = [{"type": "function", "function": {"name": "sound_horn"}}]
    text = (
        "# Tools\n\n## functions\n\nnamespace functions {\n\ntype sound_horn = () => any;\n\n} // namespace functions"
    )
    expected = 3 + n("user") + n(USER) + n(text) + 84 + 2
    assert estimated(request(said("user", USER), model="gpt-5-nano", tools=silent)) == expected


def test_reasoning_calls() -> None:
    calls = called(("find_ships", '{ "harbour": "Aal" }'), ("sound_horn", "{}"))
    messages = calls, result(0, "Gull."), result(1, "It sounded.")
    expected = beginning() + n(TOOLS_TEXT) + 85 + 1 + 3 + n("assistant") + 4
    expected += 5 + n("find_ships") + n('{ "harbour": "Aal" }') + 5 + n("sound_horn") + n("{}")
    expected += 3 + n("tool") + n("Gull.") + n("find_ships") + 2
    expected += 3 + n("tool") + n("It sounded.") + n("sound_horn") + 2
    assert estimated(request(*SYSTEM_AND_USER, *messages, model="gpt-5-mini", tools=TOOLS)) == expected + 2


# image, image-url, audio, file


def png(width: int, height: int) -> str:
    header = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + b"IHDR" + width.to_bytes(4, "big")
    return "data:image/png;base64," + b64encode(header + height.to_bytes(4, "big") + bytes(4_000)).decode()


def shown(model: str, url: str, **members: str) -> int:
    """What a picture behind a text costs."""
    parts = [{"type": "text", "text": USER}, {"type": "image_url", "image_url": {"url": url, **members}}]
    prime = 2 if model.startswith(("o", "gpt-5", "gpt-6")) else 3
    return estimated(request(said("user", parts), model=model)) - (3 + n("user") + n(USER) + prime)


@pytest.mark.parametrize(
    ("model", "tokens", "low"),
    [
        ("gpt-4o-2024-08-06", 85 + 2 * 170, 85),
        ("gpt-4.1", 85 + 2 * 170, 85),
        ("gpt-4o-mini", 2_833 + 2 * 5_667, 2_833),
        ("gpt-5", 70 + 2 * 140, 70),
        ("o3", 75 + 2 * 150, 75),
        ("gpt-4.1-mini", 20 * 15 * 162 // 100 + 2, None),
        ("gpt-4.1-nano", 20 * 15 * 246 // 100 + 2, None),
        ("o4-mini", 20 * 15 * 172 // 100 + 1, None),
        ("gpt-5-mini", 20 * 15 * 120 // 100 + 1, None),
        ("gpt-5-nano", 20 * 15 * 150 // 100 + 1, None),
        ("gpt-5.1", 70 + 2 * 140, 70),
        ("gpt-5.2", 20 * 15 * 120 // 100 + 2, 16 * 12 * 120 // 100 + 2),
        ("gpt-5.4", 20 * 15 * 120 // 100 + 2, 16 * 12 * 120 // 100 + 2),
        ("gpt-5.4-nano", 20 * 15 * 120 // 100 + 2, 16 * 12 * 120 // 100 + 2),
        ("gpt-5.5", 20 * 15 * 120 // 100 + 4, 16 * 12 * 120 // 100 + 4),
        ("gpt-5.6-sol", 20 * 15 * 120 // 100 + 4, 16 * 12 * 120 // 100 + 4),
    ],
)
def test_image_of_640_by_480(model: str, tokens: int, low: int | None) -> None:
    assert shown(model, png(640, 480)) == shown(model, png(640, 480), detail="high") == tokens
    assert shown(model, png(640, 480), detail="low") == (low or tokens)


def test_image_that_is_scaled_down_first() -> None:
    # 4000 x 1000 -> 2048 x 512: four tiles.
    assert shown("gpt-4o", png(4_000, 1_000)) == 85 + 4 * 170
    # 2000 x 3000 -> 1365 x 2048 -> 768 x 1152, and 1400 x 1000 -> 1075 x 768: six.
    assert shown("gpt-4o", png(2_000, 3_000)) == shown("gpt-4o", png(1_400, 1_000)) == 85 + 6 * 170
    # 1800 x 2400 -> 1086 x 1448, 1,536 patches in area -> 1056 x 1408: 33 by 44 whole ones.
    assert shown("gpt-5-mini", png(1_800, 2_400)) == 33 * 44 * 120 // 100 + 1


def test_image_of_12_megapixels_by_its_level_of_detail() -> None:
    photo = png(4_000, 3_000)
    # 2048 x 1536 -> 1824 x 1368: 57 by 43; the minis 1408 x 1056.
    assert shown("gpt-5.4", photo) == shown("gpt-5.5", photo, detail="high") - 2 == 57 * 43 * 120 // 100 + 2
    assert shown("gpt-5.3-codex", photo, detail="high") == 44 * 33 * 120 // 100 + 2
    # 125 by 94 are over 10,000: 3669 x 2752.
    assert shown("gpt-5.4", photo, detail="original") == 115 * 86 * 120 // 100 + 2
    assert shown("gpt-5.5", photo) == 115 * 86 * 120 // 100 + 4
    assert shown("gpt-5.6", photo, detail="auto") == shown("gpt-6", photo) == 125 * 94 * 120 // 100 + 4


def test_image_url_is_taken_for_1024_by_1024() -> None:
    address = "https://harbour.example/gull.png"
    assert shown("gpt-4o", address) == 85 + 4 * 170
    assert shown("gpt-4.1-mini", address) == 32 * 32 * 162 // 100 + 2


def test_audio() -> None:
    # Two seconds of 16-bit samples at 16 kHz.
    sound = b"RIFF" + (64_036).to_bytes(4, "little") + b"WAVEfmt " + (16).to_bytes(4, "little")
    sound += (
        bytes.fromhex("01000100803e0000007d000002001000") + b"data" + (64_000).to_bytes(4, "little") + bytes(64_000)
    )
    part = {"type": "input_audio", "input_audio": {"data": b64encode(sound).decode(), "format": "wav"}}
    assert estimated(request(said("user", [part]), model="gpt-4o-audio-preview")) == 3 + n("user") + 2 * 10 + 4 + 3


def test_file() -> None:
    for data, tokens in {"JVBERi0x": 216, "aGVsbG8gdGhlcmU=": n("hello there"), "UEsDBA==": 1_000}.items():
        part = {"type": "file", "file": {"filename": "log", "file_data": f"data:application/any;base64,{data}"}}
        assert estimated(request(said("user", [part]))) == 3 + n("user") + tokens + 3
    part = {"type": "file", "file": {"file_id": "file-1"}}
    assert estimated(request(said("user", [part]))) == 3 + n("user") + 1_000 + 3


def test_a_tool_that_is_no_function_is_counted_as_its_json() -> None:
    tool = {"type": "custom", "custom": {"name": "flare"}}
    body = request(said("user", USER), tools=[tool])
    assert estimated(body) == 3 + n("user") + n(USER) + n(json.dumps(tool, separators=(",", ":"))) + 3
