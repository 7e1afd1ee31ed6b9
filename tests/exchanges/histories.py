"""Histories and bodies: from the notation of a case to what a client of each format sends.

A case writes messages as Chat Completions has them; `body_of` says the same in Messages and in Responses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Literal

from lab.simulator.gemini.contents import POSTED

Format = Literal["chat", "messages", "responses", "gemini"]
Json = dict[str, Any]

PATHS: Mapping[str, str] = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/{model}:generateContent",
}
MEMBER: Mapping[str, str] = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}
"""Member of a body that holds the history."""
STREAMED = {":generateContent": ":streamGenerateContent?alt=sse"}
"""Endings of paths by which an answer is streamed, where the path says that."""
INSTRUCTIONS = ("system", "developer")

FILLER = (
    "the customer asked about an order that was sent to the old address and the clerk wrote down what was agreed"
    " so that nobody has to ask again before the parcel returns to the warehouse"
)
ABROAD = (
    "die Kundin fragte \u2013 \u00fcber M\u00fcnchen \u2013"
    " \u8377\u7269\u306f\u6771\u4eac\u306b\u3042\u308a\u307e\u3059 \U0001f4e6 caf\u00e9"
)
CLERK = "You are the clerk of a parcel depot. Never guess where a parcel is."
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FUNCTION: Json = {
    "name": "find_parcel",
    "description": "Where a parcel is.",
    "parameters": {"type": "object", "properties": {"parcel": {"type": "string"}}, "required": ["parcel"]},
}


def format_at(path: str) -> Format | None:
    """The format of a request at a path."""
    if POSTED.search(path):
        return "gemini"
    found: Iterator[Any] = (name for name, ending in PATHS.items() if path.partition("?")[0].endswith(ending))
    return next(found, None)


def filled(beginning: str, words: int, filler: str = FILLER) -> str:
    """A text of about `words` tokens."""
    return " ".join((beginning, *islice(cycle(filler.split()), words)))


def _plain(turn: int, words: int = 120) -> list[Json]:
    return [
        {"role": "user", "content": filled(f"Question {turn}, order ORD-{turn:04d}.", words)},
        {"role": "assistant", "content": filled(f"Answer {turn}: about ORD-{turn:04d}.", words)},
    ]


def _abroad(turn: int, words: int = 60) -> list[Json]:
    return [
        {"role": "user", "content": filled(f"Frage {turn}, ORD-{turn:04d}.", words, ABROAD)},
        {"role": "assistant", "content": filled(f"Antwort {turn}: ORD-{turn:04d}.", words, ABROAD)},
    ]


def _parts(turn: int, words: int = 110) -> list[Json]:
    """Content in parts, with a picture in every third turn, and a name."""
    parts: list[Json] = [{"type": "text", "text": filled(f"Question {turn}, order ORD-{turn:04d}.", words)}]
    if turn % 3 == 0:
        parts.append({"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}})
    answer = {"type": "text", "text": filled(f"Answer {turn}.", words)}
    return [{"role": "user", "name": "ines", "content": parts}, {"role": "assistant", "content": [answer]}]


def _tools(
    turn: int,
    words: int = 150,
    calls: int = 2,
    *,
    id: str | None = "call_{turn}_{number}",  # noqa: A002 - a case's key
    result: Mapping[str, Any] | None = None,
    between: str | None = None,
    twice: bool = False,
) -> list[Json]:
    """An agent's turn: calls, one of which fails now and then, their results, and an answer.

    `id`: id of the calls and results. `result`: other members of the results. `between`: what the user says between
    calls and results. `twice`: each result comes twice.
    """
    ids = [id and id.format(turn=turn, number=number) for number in range(calls)]
    made = [_call(id_, "find_parcel", f'{{"parcel": "PCL-{turn}{at}"}}') for at, id_ in enumerate(ids)]
    results = [
        {"role": "tool", "tool_call_id": id_, "content": _found(turn, at, words), **(result or {})}
        for at, id_ in enumerate(ids)
        for _ in range(1 + twice)
    ]
    return [
        {"role": "user", "content": f"Where are the parcels of order ORD-{turn:04d}?"},
        {"role": "assistant", "content": None, "tool_calls": made},
        *([{"role": "user", "content": between}] if between else []),
        *results,
        {"role": "assistant", "content": filled(f"They are on their way: ORD-{turn:04d}.", 20)},
    ]


def _functions(turn: int, words: int = 250) -> list[Json]:
    """The form of calls that Chat Completions had before tools."""
    call = {"name": "find_parcel", "arguments": json.dumps({"parcel": f"PCL-{turn}"})}
    return [
        {"role": "user", "content": f"Where is the parcel of order ORD-{turn:04d}?"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "find_parcel", "content": _found(turn, 0, words)},
        {"role": "assistant", "content": filled(f"It is on its way: ORD-{turn:04d}.", 20)},
    ]


def _instructed(turn: int, words: int = 110) -> list[Json]:
    """A turn with instructions in the middle of the conversation, every third time."""
    rule = {"role": ("system", "developer")[turn % 2], "content": f"Rule {turn}: say what ORD-{turn:04d} costs."}
    question, answer = _plain(turn, words)
    return [rule, question, answer] if turn % 3 == 0 else [question, answer]


def _passages(turn: int, words: int = 110, **members: Any) -> list[Json]:
    """A turn with passages for its question, which the client gives as instructions. `members`: more of theirs."""
    question, answer = _plain(turn, words)
    return [question, {"role": "system", "content": filled(f"Passages for question {turn}.", words), **members}, answer]


def _ragged(turn: int, words: int = 110) -> list[Json]:
    """Turns of clients that lose messages: calls without results, results without calls, one role twice in a row."""
    question, answer = _plain(turn, words)
    match turn % 4:
        case 0:
            lost = {"role": "assistant", "content": "I will look.", "tool_calls": [_call(f"c{turn}", "find_parcel")]}
            return [question, lost, answer]
        case 1:
            return [question, {"role": "tool", "tool_call_id": f"lost_{turn}", "content": "found: nothing"}, answer]
        case 2:
            return [question, {**question, "content": "Are you there?"}, answer, {"role": "assistant", "content": ""}]
        case _:
            return [question, {**answer, "refusal": "I cannot say that.", "content": None}, answer]


def _found(turn: int, number: int, words: int) -> str:
    if (turn + number) % 4 == 3:
        return f"Error: parcel PCL-{turn}{number} is not in the books"
    return json.dumps({"parcel": f"PCL-{turn}{number}", "state": "on a lorry", "notes": filled("", words)})


def _call(id_: str | None, name: str, arguments: Any = "{}") -> Json:
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": written}}


TURNS: Mapping[str, Callable[..., list[Json]]] = {
    "plain": _plain, "abroad": _abroad, "parts": _parts, "tools": _tools, "functions": _functions,
    "instructed": _instructed, "passages": _passages, "ragged": _ragged,
}  # fmt: skip


def messages_of(history: Any) -> list[Json]:
    """Messages of a case's history, as Chat Completions has them; a `raw` element stays as it is written."""
    if isinstance(history, Mapping):
        return _conversation(history)
    return [message for entry in history for message in _entry(entry)]


def _conversation(history: Mapping[str, Any]) -> list[Json]:
    """`{turns: 16}`: instructions, sixteen turns, and the next question."""
    options = dict(history)
    system, question = options.pop("system", CLERK), options.pop("question", None)
    last = int(options.get("first", 1)) + int(options["turns"])
    leading = [{"role": "system", "content": text_of(system)}] if system else []
    return [*leading, *_entry(options), {"role": "user", "content": text_of(question or f"And question {last}?")}]


def _entry(entry: Mapping[str, Any]) -> list[Json]:
    options = dict(entry)
    if "turns" in entry:
        number, of, first = options.pop("turns"), options.pop("of", "plain"), options.pop("first", 1)
        return [message for turn in range(first, first + number) for message in TURNS[of](turn, **options)]
    if "agent" in entry:
        # One long turn: so many calls, each with its result.
        number = options.pop("agent")
        return [message for turn in range(number) for message in _tools(turn, calls=1, **options)[1:3]]
    if "at_once" in entry:
        return _tools(1, calls=options.pop("at_once"), **options)[1:-1]
    if "raw" in entry:
        return [{"raw": entry["raw"]}]
    if "call" in entry or "calls" in entry:
        given = entry.get("calls") or [{**options, "id": entry["call"]}]
        calls = [_call(one.get("id"), one.get("name", "find_parcel"), one.get("arguments", "{}")) for one in given]
        return [{"role": "assistant", "content": entry.get("text"), "tool_calls": calls}]
    if "result" in entry:
        others = {key: value for key, value in entry.items() if key not in ("result", "content")}
        return [{"role": "tool", "tool_call_id": entry["result"], "content": text_of(entry["content"]), **others}]
    roles = [role for role in ("system", "developer", "user", "assistant") if role in entry]
    if len(roles) != 1:
        raise ValueError(f"A history has no such entry: {entry}")
    others = {key: value for key, value in entry.items() if key not in roles and key != "times"}
    message = {"role": roles[0], "content": text_of(entry[roles[0]]), **others}
    return [message] * int(entry.get("times", 1))


def text_of(value: Any) -> Any:
    """Text of `{text: ..., words: 300}`, a beginning and so many words of filler, or of `{text: ..., characters: 300}`,
    so many characters in all; anything else is the content."""
    if isinstance(value, Mapping) and "characters" in value:
        characters = int(value["characters"])
        return filled(str(value.get("text", "")), characters)[:characters]
    if isinstance(value, Mapping) and "words" in value:
        return filled(str(value.get("text", "")), int(value["words"]))
    return value


def body_of(messages: Sequence[Json], format_: Format, model: str, *, tools: int, functions: bool = False) -> Json:
    """Body of a request with these messages, in a format. `tools`: number of functions that it declares."""
    body: Json
    if format_ == "chat":
        body = {"model": model, "messages": [message.get("raw", message) for message in messages]}
    elif format_ == "messages":
        body = {"model": model, "max_tokens": 500, **_messages(messages)}
    elif format_ == "gemini":
        body = _gemini(messages)
    else:
        body = {"model": model, "store": False, **_responses(messages)}
    if functions:
        body["functions"] = [FUNCTION]
    elif tools:
        declared = [_declared(number, format_) for number in range(1, tools + 1)]
        body["tools"] = [{"functionDeclarations": declared}] if format_ == "gemini" else declared
    return body


def _declared(number: int, format_: Format) -> Json:
    """A function, as a request of the format declares it; the first one has no number in its name."""
    function = FUNCTION if number == 1 else {**FUNCTION, "name": f"{FUNCTION['name']}_{number}"}
    if format_ == "chat":
        return {"type": "function", "function": function}
    if format_ == "responses":
        return {"type": "function", **function}
    if format_ == "gemini":
        return function
    return {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}


def _leading(messages: Sequence[Json]) -> tuple[str | None, Sequence[Json]]:
    """Text of the instructions at the beginning, and the messages behind them."""
    first = next((at for at, one in enumerate(messages) if one.get("role") not in INSTRUCTIONS), len(messages))
    texts = [_plain_text(one["content"]) for one in messages[:first]]
    return "\n\n".join(texts) if texts else None, messages[first:]


def _messages(messages: Sequence[Json]) -> Json:
    system, others = _leading(messages)
    made: list[Json] = []
    for message in others:
        if "raw" in message:
            made.append(message["raw"])
            continue
        blocks = [block for block in _blocks(message) if block.get("text") != ""]
        role = {"developer": "system", "tool": "user", "function": "user"}.get(message["role"], message["role"])
        results = message["role"] in ("tool", "function")
        if results and made and _holds_results(made[-1]):
            made[-1]["content"] += blocks  # The results of one step are one message.
        elif blocks:
            rest = {key: value for key, value in message.items() if key not in _OWN}
            made.append({"role": role, "content": blocks, **rest})
    return {**({"system": system} if system is not None else {}), "messages": made}


_OWN = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal", "function_call")


def _holds_results(message: Json) -> bool:
    content = message.get("content")
    return isinstance(content, list) and bool(content) and content[-1].get("type") == "tool_result"


def _blocks(message: Json) -> list[Json]:
    if message["role"] in ("tool", "function"):
        id_ = message.get("tool_call_id", message.get("name"))
        return [{"type": "tool_result", "tool_use_id": id_, "content": message["content"]}]
    blocks = [_block(part) for part in _content(message)]
    for call in _calls(message):
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call.get("id"),
                "name": function["name"],
                "input": _parsed(function["arguments"]),
            }
        )
    return blocks


def _block(part: Json) -> Json:
    if part.get("type") != "image_url":
        return part
    url = str(part["image_url"]["url"])
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    source = {"type": "base64", "media_type": kind, "data": data} if data else {"type": "url", "url": url}
    return {"type": "image", "source": source}


def _gemini(messages: Sequence[Json]) -> Json:
    system, others = _leading(messages)
    made: list[Json] = []
    names: dict[Any, str] = {}
    for message in others:
        if "raw" in message:
            made.append(message["raw"])
            continue
        names |= {call.get("id"): call["function"]["name"] for call in _calls(message)}
        parts = [*_results(message, names), *_gemini_parts(message)]
        role = "model" if message["role"] == "assistant" else "user"
        if parts and "functionResponse" in parts[0] and made and "functionResponse" in made[-1]["parts"][-1]:
            made[-1]["parts"] += parts
        elif parts:
            rest = {key: value for key, value in message.items() if key not in _OWN}
            made.append({"role": role, "parts": parts, **rest})
    return {**({"systemInstruction": {"parts": [{"text": system}]}} if system is not None else {}), "contents": made}


def _results(message: Json, names: Mapping[Any, str]) -> list[Json]:
    if message["role"] not in ("tool", "function"):
        return []
    id_ = message.get("tool_call_id")
    named = {"name": names.get(id_) or message.get("name") or "find_parcel", **({"id": id_} if id_ else {})}
    return [{"functionResponse": {**named, "response": {"result": _plain_text(message["content"])}}}]


def _gemini_parts(message: Json) -> list[Json]:
    if message["role"] in ("tool", "function"):
        return []
    parts = [_gemini_part(part) for part in _content(message) if part.get("text") != ""]
    for call in _calls(message):
        named = {"name": call["function"]["name"], "args": _parsed(call["function"]["arguments"])}
        id_ = {"id": call["id"]} if call.get("id") and "tool_calls" in message else {}
        parts.append({"functionCall": {**named, **id_}})
    return parts


def _gemini_part(part: Json) -> Json:
    match part:
        case {"type": "text", "text": str(text), **others}:
            return {"text": text, **others}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            return {"inlineData": {"mimeType": kind, "data": data}} if data else {"fileData": {"fileUri": url}}
    return part


def _responses(messages: Sequence[Json]) -> Json:
    instructions, others = _leading(messages)
    made = [item for message in others for item in _items(message)]
    return {**({"instructions": instructions} if instructions is not None else {}), "input": made}


def _items(message: Json) -> list[Json]:
    if "raw" in message:
        return [message["raw"]]
    role = message["role"]
    if role in ("tool", "function"):
        id_ = message.get("tool_call_id", message.get("name"))
        return [{"type": "function_call_output", "call_id": id_, "output": _plain_text(message["content"])}]
    parts = [_part(part, role) for part in _content(message) if part.get("text") != ""]
    said = [{"type": "message", "role": role, "content": parts}] if parts else []
    calls = [{"type": "function_call", "call_id": call.get("id"), **call["function"]} for call in _calls(message)]
    return [*said, *calls]


def _part(part: Json, role: str) -> Json:
    match part:
        case {"type": "text", "text": str(text), **others}:
            return {"type": "output_text" if role == "assistant" else "input_text", "text": text, **others}
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return {"type": "input_image", "image_url": url, "detail": "low"}
    return part


def _calls(message: Json) -> list[Json]:
    if call := message.get("function_call"):
        return [{"id": call["name"], "function": call}]
    return list(message.get("tool_calls") or ())


def _content(message: Json) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _plain_text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {"unreadable": arguments}


def texts_in(value: Any) -> Iterable[str]:
    """Texts anywhere in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts_in(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from texts_in(inner)
