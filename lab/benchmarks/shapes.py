"""Bodies of unusual shapes, each within Steno's default limits, for measurements and fuzzing.

`SHAPES` has the ones with names, `generated(seed, count)` as many more as are asked for. Each is made when its function
is called, because all together take a gigabyte; calling it again gives the same bytes. A shape may be valid or not, as
JSON or as a chat request: whatever it is, it must not keep another caller waiting.

    SHAPES["one_key"]()
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial

Shape = Callable[[], bytes]

SIZE = 19_900_000
"""Bytes that the large ones have."""
MODEL = b'"model":"gpt-4o"'
ASKED = b'{"role":"user","content":"Why?"}'
HEAD = b"{" + MODEL + b',"messages":[' + ASKED + b"]"
"""A small request without its closing brace."""


def filled(before: bytes, unit: bytes, after: bytes, size: int = SIZE, between: bytes = b"") -> bytes:
    """`unit` as often as the size allows, between two fixed texts."""
    times = max(1, (size - len(before) - len(after)) // (len(unit) + len(between)))
    return before + (unit + between) * (times - 1) + unit + after


def member(name: str, before: bytes, unit: bytes, after: bytes, between: bytes = b"", size: int = SIZE) -> bytes:
    """A small request with one member more, filled with units."""
    return filled(HEAD + b',"' + name.encode() + b'":' + before, unit, after + b"}", size, between)


def keys(count: int, value: bytes = b"0", size: int = SIZE) -> bytes:
    """Body of `count` top-level keys beside the messages, or as many as fit."""
    pieces, length = [HEAD], len(HEAD)
    for number in range(count):
        piece = b',"k%d":%b' % (number, value)
        if length + len(piece) >= size:
            break
        pieces.append(piece)
        length += len(piece)
    return b"".join((*pieces, b"}"))


def messages(elements: Iterator[bytes] | list[bytes], beside: bytes = b"") -> bytes:
    return b"{" + MODEL + beside + b',"messages":[' + b",".join(elements) + b"]}"


def tiny_messages(count: int) -> bytes:
    """A history of very short messages, each of them different."""
    roles = (b"user", b"assistant")
    return messages([b'{"role":"%b","content":"%d"}' % (roles[number % 2], number) for number in range(count)])


def long_history(count: int, characters: int) -> bytes:
    """Turns of a question and an answer of so many characters."""
    roles = (b"user", b"assistant")
    text = b"the quick brown fox, as ever, jumps. "
    filler = (text * (characters // len(text) + 1))[:characters]
    return messages([b'{"role":"%b","content":"%d %b"}' % (roles[n % 2], n, filler) for n in range(count)])


def tool_results(count: int, characters: int = 100) -> bytes:
    """An agent's history: so many messages, every other one a call, every other one its result."""
    pairs = []
    for number in range(count // 2):
        call = b'{"id":"c%d","type":"function","function":{"name":"f","arguments":"{}"}}' % number
        pairs.append(b'{"role":"assistant","content":null,"tool_calls":[%b]}' % call)
        pairs.append(b'{"role":"tool","tool_call_id":"c%d","content":"%b"}' % (number, b"r" * characters))
    return messages([ASKED, *pairs])


def one_message(before: bytes, unit: bytes, after: bytes, between: bytes = b"", size: int = SIZE) -> bytes:
    """One user message whose content is filled with units."""
    start = b"{" + MODEL + b',"messages":[{"role":"user","content":' + before
    return filled(start, unit, after + b"}]}", size, between)


def text_of(unit: bytes, size: int = SIZE) -> bytes:
    return one_message(b'"', unit, b'"', size=size)


def repeated_keys(count: int) -> bytes:
    return HEAD + b',"seed":1' * count + b"}"


def named_model(number: int = 0, length: int = 300, unit: str = "gpt-4-") -> bytes:
    """A model's name of that length that nobody has used before."""
    name = f"{unit * length}"[: length - 12] + f"{number:012d}"
    return b'{"model":%b,"messages":[%b]}' % (json.dumps(name).encode(), ASKED)


def properties(count: int) -> bytes:
    """One tool with so many parameters."""
    named = b",".join(b'"p%d":{"type":"string"}' % number for number in range(count))
    function = b'{"name":"f","parameters":{"type":"object","properties":{%b}}}' % named
    return HEAD + b',"tools":[{"type":"function","function":%b}]}' % function


def calls_with(arguments: bytes, count: int = 1) -> bytes:
    """Calls whose arguments, as they stand in a string, share the size."""
    held = filled(b"[0", arguments, b"]", SIZE // count - 500)
    call = b'{"id":"c%d","type":"function","function":{"name":"f","arguments":"%b"}}'
    calls = b",".join(call % (number, held) for number in range(count))
    return messages([ASKED, b'{"role":"assistant","tool_calls":[%b]}' % calls, ASKED])


def one_call(before: bytes, unit: bytes, after: bytes) -> bytes:
    """One call, filled with units, and its result."""
    start = b"{" + MODEL + b',"messages":[' + ASKED + b',{"role":"assistant","content":null,"tool_calls":[{"id":"c",'
    result = b'{"role":"tool","tool_call_id":"c","content":"x"}'
    return filled(start + before, unit, after + b"}]}," + result + b"," + ASKED + b"]}")


def one_call_message(unit: bytes, name: bytes = b"tool_calls") -> bytes:
    start = b"{" + MODEL + b',"messages":[' + ASKED + b',{"role":"assistant","content":null,"' + name + b'":['
    return filled(start, unit, b"]}," + ASKED + b"]}", between=b",")


PART = b'{"type":"text","text":"x"}'
PICTURE = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}'
CALL = b'{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}'

SHAPES: dict[str, Shape] = {
    # Keys and members.
    "one_key": lambda: filled(HEAD + b',"', b"k", b'":1}'),
    "one_key_of_backslashes": lambda: filled(HEAD + b',"', rb"\\", b'":1}'),
    "one_key_of_escapes": lambda: filled(HEAD + b',"', rb"\u0041", b'":1}'),
    "one_key_unclosed": lambda: filled(HEAD + b',"', b"k", b""),
    "keys_1200000": lambda: keys(1_200_000),
    "keys_19000": lambda: keys(19_000),
    "keys_of_20000_characters": lambda: b"".join(
        (HEAD, *(b',"%019990d":1' % number for number in range(SIZE // 20_000)), b"}")
    ),
    "repeated_key": lambda: repeated_keys(2_000_000),
    "empty_keys": lambda: filled(HEAD, b',"":0', b"}"),
    # Messages.
    "tiny_messages_300000": lambda: tiny_messages(300_000),
    "tiny_messages_100000": lambda: tiny_messages(100_000),
    "tiny_messages_50000": lambda: tiny_messages(50_000),
    "tiny_messages_10000": lambda: tiny_messages(10_000),
    "tiny_messages_9999": lambda: tiny_messages(9_999),
    "empty_messages": lambda: filled(b"{" + MODEL + b',"messages":[', b"{}", b"]}", between=b","),
    "messages_of_zeros": lambda: filled(b"{" + MODEL + b',"messages":[', b"0", b"]}", between=b","),
    "equal_messages": lambda: filled(b"{" + MODEL + b',"messages":[', ASKED, b"]}", between=b","),
    "history_10000_of_1900": lambda: long_history(10_000, 1_900),
    "history_1000_of_19000": lambda: long_history(1_000, 19_000),
    "history_2000_of_100": lambda: long_history(2_000, 100),
    "tool_results_10000": lambda: tool_results(9_998),
    "tool_results_9000_of_1500": lambda: tool_results(9_000, 1_500),
    "one_tool_turn_of_100000": lambda: tool_results(100_000),
    # One message.
    "parts": lambda: one_message(b"[", PART, b"]", b","),
    "parts_9000": lambda: one_message(b"[", PART, b"]", b",", size=9_000 * (len(PART) + 1)),
    "parts_of_zeros": lambda: one_message(b"[", b"0", b"]", b","),
    "pictures": lambda: one_message(b"[", PICTURE, b"]", b","),
    "tool_calls": lambda: one_call_message(CALL),
    "tool_calls_empty": lambda: one_call_message(b"{}"),
    "message_members": lambda: filled(b"{" + MODEL + b',"messages":[{"role":"user","content":"x"', b',"m":0', b"}]}"),
    "message_member_of_one_key": lambda: filled(
        b"{" + MODEL + b',"messages":[{"role":"user","content":"x","', b"k", b'":1}]}'
    ),
    "call_of_one_key": lambda: one_call(b'"function":{"name":"f","arguments":"{}"},"', b"k", b'":1'),
    "arguments_of_one_key": lambda: one_call(rb'"function":{"name":"f","arguments":"{\"', b"k", rb'\":1}"}'),
    "arguments_of_one_key_of_escapes": lambda: one_call(
        rb'"function":{"name":"f","arguments":"{\"', rb"\\u0041", rb'\":1}"}'
    ),
    "arguments_of_lists": lambda: calls_with(b",[]"),
    "arguments_of_lists_50": lambda: calls_with(b",[]", 50),
    "arguments_of_escapes": lambda: calls_with(rb",\"\\u0041\""),
    "arguments_of_backslashes": lambda: calls_with(b"\\\\" * 4),
    # Texts.
    "text_of_one_letter": lambda: text_of(b"a"),
    "text_of_spaces": lambda: text_of(b" "),
    "text_of_commas": lambda: text_of(b","),
    "text_of_braces": lambda: text_of(b"[{"),
    "text_of_quotes": lambda: text_of(rb"\""),
    "text_of_backslashes": lambda: text_of(rb"\\"),
    "text_of_escapes": lambda: text_of(rb"\u0041"),
    "text_of_escaped_emoji": lambda: text_of(rb"\ud83d\ude00"),
    "text_of_half_emoji": lambda: text_of(rb"\ud83d"),
    "text_of_emoji": lambda: text_of("😀".encode()),
    "text_of_newlines": lambda: text_of(rb"\n"),
    "text_of_digits": lambda: text_of(b"1234567890"),
    "text_of_words": lambda: text_of(b"the quick brown fox, as ever, jumps. "),
    "text_of_bad_utf8": lambda: text_of(b"\xff"),
    "text_unclosed": lambda: one_message(b'"', b"a", b"")[:-4],
    # Space and brackets.
    "spaces": lambda: b" " * SIZE,
    "spaces_before": lambda: filled(b"", b" ", HEAD + b"}"),
    "spaces_inside": lambda: filled(b"{" + MODEL + b',"messages":[', b" ", ASKED + b"]}"),
    "spaces_after": lambda: filled(HEAD + b"}", b" ", b""),
    "open_brackets": lambda: b"[" * SIZE,
    "open_braces": lambda: b'{"a":' * (SIZE // 5),
    "nested_arrays": lambda: b"[" * (SIZE // 2) + b"]" * (SIZE // 2),
    "nested_in_a_message": lambda: one_message(b"[" * (SIZE // 2), b"]", b"", size=SIZE),
    "nested_900_deep": lambda: member("metadata", b"[", b"[" * 900 + b"]" * 900, b"]", b","),
    "commas": lambda: b"[" + b"," * SIZE + b"]",
    "zeros": lambda: filled(b"[", b"0", b"]", between=b","),
    "one_number": lambda: filled(HEAD + b',"seed":', b"1", b"}"),
    "one_fraction": lambda: filled(HEAD + b',"seed":0.', b"1", b"}"),
    "quotes": lambda: b'"' * SIZE,
    "nulls": lambda: b"\0" * SIZE,
    # Other members.
    "tools_empty": lambda: member("tools", b"[", b"{}", b"]", b","),
    "tools_of_zeros": lambda: member("tools", b"[", b"0", b"]", b","),
    "functions": lambda: member("functions", b"[", b'{"name":"f"}', b"]", b","),
    "one_tool_of_properties": lambda: member(
        "tools",
        b'[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{}',
        b',"b":{"type":"string"}',
        b"}}}}]",
    ),
    "one_tool_of_one_key": lambda: member(
        "tools", b'[{"type":"function","function":{"name":"f","parameters":{"properties":{"', b"k", b'":{}}}}}]'
    ),
    "one_tool_of_60000_properties": lambda: properties(60_000),
    "one_tool_with_a_long_description": lambda: member(
        "tools", b'[{"type":"function","function":{"name":"f","description":"', b"word ", b'"}}]'
    ),
    "one_tool_of_enums": lambda: member(
        "tools",
        b'[{"type":"function","function":{"name":"f","parameters":{"properties":{"a":{"enum":["x"',
        b',"y"',
        b"]}}}}}]",
        size=900_000,
    ),
    "response_format": lambda: member(
        "response_format", b'{"type":"json_schema","json_schema":{"name":"n","schema":{"a":[', b"{}", b"]}}}", b","
    ),
    "tool_choice": lambda: member("tool_choice", b'"', b"x", b'"'),
    "context": lambda: member("context", b'{"pin":null', b',"pin":null', b"}"),
    "context_pin": lambda: member("context", b'{"pin":[', b"0", b"]}", b","),
    "context_pin_99000": lambda: member("context", b'{"pin":[', b"0", b"]}", b",", size=200_000),
    "context_instructions": lambda: member("context", b'{"instructions":"', b"x", b'"}'),
    "context_management": lambda: member("context_management", b"[", b"{}", b"]", b","),
    "metadata": lambda: member("metadata", b'{"a":"b"', b',"k":"v"', b"}"),
    "metadata_of_one_key": lambda: member("metadata", b'{"', b"k", b'":"v"}'),
    "stream_options": lambda: member("stream_options", b'{"a":0', b',"b":1', b"}"),
    "stream_options_of_one_key": lambda: member("stream_options", b'{"', b"k", b'":0}'),
    "prompt_cache_key": lambda: member("prompt_cache_key", b'"', b"x", b'"'),
    "user": lambda: member("user", b'"', b"x", b'"'),
    "max_tokens": lambda: member("max_tokens", b"", b"9", b""),
    "n": lambda: member("n", b"", b"9", b""),
    "model_of_megabytes": lambda: filled(b'{"messages":[' + ASKED + b'],"model":"', b"m", b'"}'),
    # Names of models.
    "named_model": named_model,
    "named_model_of_slashes": partial(named_model, unit="a/"),
    "named_model_of_dots": partial(named_model, unit="a."),
    "named_model_of_dashes": partial(named_model, unit="-1"),
}
"""Shapes by name. Those whose name ends with a number have so many of it, and may be within the limits."""


def generated(seed: int, count: int, size: int = SIZE) -> Iterator[tuple[str, Shape]]:
    """Random shapes, each with a name that tells its seed: built of units that are repeated, nested and mixed."""
    for number in range(count):
        yield f"generated_{seed}_{number}", partial(_generated, f"{seed}/{number}", size)


UNITS = (b'"%b":0,', b"[", b"]", b"{", b"}", b",", b" ", b'"', b"\\", rb"\"", rb"\u0041", "é😀".encode(), b"0", b"null")


def _generated(seed: str, size: int) -> bytes:
    rng = random.Random(seed)
    amount = rng.choice((size, size // 20, size // 50))
    kind = rng.randrange(4)
    if kind == 0:  # Valid: a value of random form, as a member or as content.
        value = filled(b"[", json.dumps(_value(rng, 4)).encode(), b"]", amount, b",")
        name = rng.choice(("tools", "metadata", "context", "stop", "messages", "stream_options", "logit_bias"))
        return HEAD + b',"%b":' % name.encode() + value + b"}"
    if kind == 1:  # Valid: messages of random form.
        variants = [json.dumps(_message(rng)).encode() for _ in range(20)]
        elements, length = [], 0
        while length < amount - 40_000:
            elements.append(rng.choice(variants))
            length += len(elements[-1]) + 1
        return messages(elements)
    if kind == 2:  # Pieces of JSON in any order.
        pieces = [rng.choice(UNITS) * rng.choice((1, 2, 100, 10_000)) for _ in range(500)]
        return (HEAD + b"".join(pieces) * (1 + amount // max(1, sum(map(len, pieces)))))[:size]
    # A named shape, cut anywhere or with a piece of it doubled.
    body = SHAPES[rng.choice(sorted(SHAPES))]()
    start, stop = sorted((rng.randrange(len(body)), rng.randrange(len(body))))
    return (body[:stop] if rng.random() < 0.5 else body[:start] + body[start:stop] * 2 + body[stop:])[:size]


def _value(rng: random.Random, depth: int) -> object:
    if depth == 0 or rng.random() < 0.4:
        return rng.choice((0, 1e300, None, True, "x", "é😀" * 20, ",[{" * 10, "\\" * 9, "a" * rng.choice((1, 5_000))))
    if rng.random() < 0.5:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(8))]
    return {
        rng.choice(("a", "role", "type", "k" * 200)) + str(n): _value(rng, depth - 1) for n in range(rng.randrange(8))
    }


def _message(rng: random.Random) -> object:
    role = rng.choice(("user", "assistant", "tool", "system", "developer", "function", "other"))
    content = rng.choice(
        ("x", "word " * 400, None, [{"type": "text", "text": "x"}] * rng.randrange(30), _value(rng, 2))
    )
    held: dict[str, object] = {"role": role, "content": content}
    if rng.random() < 0.3:
        held["tool_calls"] = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(5)]
    if rng.random() < 0.3:
        held["tool_call_id"] = f"c{rng.randrange(5)}"
    return held
