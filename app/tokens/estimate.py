"""Token estimate of a prompt before calibration.

The formula is derived from prompts whose size the providers reported. It is a sum over units (messages, or calls with
their results) and declarations, so that each part is counted once and cached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from app.conversation.messages import Kind, Message, ToolCall, own_message, tool_name
from app.tokens.counting_rules import CountingRules, media_tokens

Count = Callable[[str], int]
"""Function that counts a text's tokens. The count is at most the number of UTF-8 bytes."""

Cost = Callable[[Message], int]
"""Function that counts a message's tokens by the rules of the request's model."""

FORMULA_VERSION = 4
"""Version in the keys of counts and calibrations; increase it with every change of the formula."""

UNWRITTEN_KEYS = frozenset(
    {"required", "additionalProperties", "default", "minimum", "maximum", "minItems", "maxItems"}
)
"""Keys that the prompt leaves out of a response schema."""
NAME_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keys of a schema whose values are maps from client-chosen names to schemas."""
MAX_SCHEMA_DEPTH = 60
"""Greatest depth of nested schemas. Deeper schemas are not counted."""
CHANNEL_TOKENS = 2
"""Tokens that gpt-5 adds to each assistant text for its channel."""
LONGEST_COMPACTED = 200_000
"""Maximum characters of arguments from which Steno removes whitespace before counting their tokens."""

# Possessive, so that long runs of escapes cause no backtracking.
_ESCAPES = re.compile(r"(?:\\(?:u[0-9a-fA-F]{4}|.))++")


class Tool(Struct, frozen=True):
    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema as received."""


class ResponseFormat(Struct, frozen=True):
    name: str
    description: str
    schema: Mapping[str, Any]


class Declarations(Struct, frozen=True):
    tools: tuple[Tool, ...] = ()
    legacy: bool = False
    """Whether the tools are declared as `functions`, the older form."""
    choice: str = ""
    """`tool_choice` or `function_call` if it is a word (none, auto, required); else empty."""
    forced: str = ""
    """Function that the model must call, if the request names one."""
    response_format: ResponseFormat | None = None
    others: tuple[str, ...] = ()
    """JSON of tools that are no functions (custom, web search, ...)."""
    must_call: bool = False
    """Whether the model must call some function."""


class Costs(Struct, frozen=True):
    """Uncalibrated estimate of a prompt's parts."""

    messages: Sequence[int]
    """Tokens of each message, the instructions first."""
    fixed: int
    """Tokens of everything except the messages: tools, response format, reply priming."""
    question: int | None = None
    """Tokens of the last user message without its tool results; None if it has no tool results."""


def latest_turn(messages: Sequence[Message]) -> int:
    """Return the index after the last user message. Some providers drop the reasoning before this index."""
    user = (Kind.USER, Kind.CLIENT)  # Providers do not distinguish these.
    indexes = (i for i in reversed(range(len(messages))) if messages[i].kind in user or messages[i].is_result_text)
    return next((i + 1 for i in indexes), 0)


def turn_reasoning_tokens(message: Message, rules: CountingRules, count: Count) -> int:
    """Return the tokens of reasoning that the provider drops in later turns. Counts of `unit_tokens` do not include
    them, and so stay valid in later turns."""
    return reasoning_tokens(message, rules, count) if _counts_in_its_turn(message, rules) else 0


def _counts_in_its_turn(message: Message, rules: CountingRules) -> bool:
    # Reasoning in a history that the provider compacted is an instruction, and costs tokens in every turn.
    return rules.drops_reasoning and message.kind is Kind.ASSISTANT


def reasoning_tokens(message: Message, rules: CountingRules, count: Count) -> int:
    """Return the tokens of a message's reasoning: those of its text or of its encrypted form, whichever are more."""
    shown = sum(map(count, message.thoughts))
    return max(shown, rules.encrypted.tokens(message.encrypted)) if message.encrypted else shown


def byte_bound(unit: Sequence[Message], rules: CountingRules) -> int:
    """Return an upper bound of a unit's tokens: each byte of text counts as one token."""
    return sum(unit_tokens(unit, rules, utf8_length))


def picture_tokens(messages: Iterable[Message], rules: CountingRules) -> int | None:
    """Return the tokens of all pictures; None if there is no picture, a picture of unknown size, or other media."""
    media = [media for message in messages for media in message.media]
    if not media or any(one.kind != "image" or not one.width or not one.height for one in media):
        return None
    return sum(media_tokens(one, rules, len) for one in media)


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def system_text(messages: Iterable[Message]) -> str | None:
    """Return the text of the first system or developer message, which precedes the declarations."""
    return next(("".join(m.texts) for m in messages if m.kind is Kind.INSTRUCTIONS), None)


def unit_tokens(unit: Sequence[Message], rules: CountingRules, count: Count) -> tuple[int, ...]:
    """Return the tokens of each message of a unit.

    In the prompt, parallel calls are one text, and their results are another text. Each result message gets the tokens
    of its own text. The message with the calls gets the remaining tokens.
    """
    if len(unit) == 1 and not (unit[0].calls or unit[0].answers):  # Nearly all units.
        return (_message_tokens(unit[0], unit[0].name, rules, count),)
    tokens: list[int] = []
    joint: dict[int, list[int]] = {}
    for index, message in enumerate(unit):
        caller = next((index - caller.distance for caller in message.callers if caller), -1)
        if any(message.answers) and caller in joint:
            joint[caller].append(index)
            tokens.append(_media_tokens(message, rules, count))
        else:
            tokens.append(_message_tokens(message, tool_name(unit, index), rules, count))
        calls = _tool_calls(message)
        if len(calls) > 1 and not (rules.gpt_5 or rules.one_by_one):
            joint[index] = []
    for caller, results in joint.items():
        texts = [_json_text("".join(unit[index].texts)) for index in results]
        left = _parallel_tokens(_tool_calls(unit[caller]), texts, count)
        for index, text in zip(results, texts, strict=True):
            share = min(left, count(text))
            tokens[index] += share
            left -= share
        tokens[caller] += left
    return tuple(tokens)


def declared_tokens(
    declarations: Declarations, system: str | None, holds_calls: bool, rules: CountingRules, count: Count
) -> int:
    """Return the tokens of everything in a request except its messages. `system` is the result of `system_text`."""
    tokens = rules.reply_prime + sum(map(count, declarations.others))
    shows_tools = bool(declarations.tools) and not (rules.hides_tools and declarations.choice == "none")
    if shows_tools:
        tokens += _tools_tokens(declarations, system, holds_calls, rules, count)
    if declarations.response_format is not None and rules.shows_schema:
        text = _format_text(declarations.response_format)
        tokens += rules.schema_extra
        if rules.declares_apart:
            return tokens + count(text)
        if shows_tools:
            return tokens + count(text) + 1
        # Without tools, the beginning of the reply also names the response format.
        tokens += answer_tokens(declarations, rules, count)
        tokens += count(text) + 4 if system is None else _tokens_behind(system, text, count)
    return tokens


def answer_tokens(declarations: Declarations, rules: CountingRules, count: Count) -> int:
    """Return the tokens that the name of the request's response format adds to each assistant text."""
    if declarations.response_format is None or rules.gpt_5 or rules.declares_apart or not rules.shows_schema:
        return 0
    return 2 + count(declarations.response_format.name)


def is_answer(message: Message) -> bool:
    return message.kind is Kind.ASSISTANT and any(message.texts) and not message.calls


def note_tokens(text: str, count: Count) -> int:
    """Return the tokens of a message that Steno adds, by the same formula for all models."""
    return 3 + count(own_message(text).role) + count(text)


def _tools_tokens(
    declarations: Declarations, system: str | None, holds_calls: bool, rules: CountingRules, count: Count
) -> int:
    if rules.one_by_one is not None:
        preamble = rules.one_by_one.must_call if declarations.must_call else rules.one_by_one.preamble
        return preamble + sum(count(_tool_text(tool)) for tool in declarations.tools)
    text = f"# Tools\n\n## functions\n\n{functions_text(declarations.tools)}"
    if rules.gpt_5:
        stated = system is not None and holds_calls and not rules.declares_apart
        required = rules.required_extra * (declarations.choice == "required")
        return count(text) + rules.tools_alone + required + stated - (not declarations.tools[0].description)
    alone = system is None or rules.declares_apart
    tokens = count(text) + rules.tools_alone if alone else _tokens_behind(system or "", text, count) - 1
    if declarations.forced:
        return tokens + (4 if declarations.legacy else 7) + count(declarations.forced)
    return tokens + (declarations.choice == "none")


def _tool_text(tool: Tool) -> str:
    try:
        schema = json.dumps(tool.parameters, ensure_ascii=False)
    except RecursionError:
        schema = ""
    return f"{_json_text(tool.description)}, {_json_text(tool.name)}, {schema}"


def _tokens_behind(system: str, text: str, count: Count) -> int:
    """Return the tokens of a text that the provider appends to the system message."""
    return count(f"{system}\n\n{text}") - count(system)


def _format_text(response_format: ResponseFormat) -> str:
    lines = comment_lines(response_format.description)
    schema = json.dumps(_written(response_format.schema, 0), separators=(",", ":"))
    return "\n".join(("# Response Formats", "", f"## {response_format.name}", "", *lines, schema))


def _written(value: Any, depth: int, names: bool = False) -> Any:
    """Return the part of a schema that the prompt contains. `names`: the client chose the keys of this object."""
    if depth == MAX_SCHEMA_DEPTH:
        return None
    if isinstance(value, list):
        return [_written(item, depth + 1) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _written(item, depth + 1, not names and key in NAME_MAPS)
        for key, item in value.items()
        if names or key not in UNWRITTEN_KEYS
    }


def _message_tokens(message: Message, called: str, rules: CountingRules, count: Count) -> int:
    """`called`: the called function's name, if the message is a result."""
    thinks = message.thoughts or message.encrypted
    thoughts = reasoning_tokens(message, rules, count) if thinks and not _counts_in_its_turn(message, rules) else 0
    if message.sealed and not (message.texts or message.calls or message.answers):
        return thoughts + _media_tokens(message, rules, count)
    tokens = rules.message + count(message.role)
    if message.media:
        tokens += _media_tokens(message, rules, count)
    if message.calls or message.settled:
        tokens += _calls_tokens(message, rules, count)
    if rules.one_by_one is not None:
        tokens += rules.one_by_one.result * len(message.answers)
    elif any(message.answers):
        return tokens + count("".join(message.texts)) + count(called) + 2
    tokens += sum(map(count, message.texts)) + thoughts
    if rules.gpt_5 and message.kind is Kind.ASSISTANT and any(message.texts):
        tokens += CHANNEL_TOKENS
    if message.answers and not any(message.answers):
        return tokens - 1 + count(message.name)
    if message.name:
        tokens += 1 if message.name == message.role else 1 + count(message.name)
    return tokens


def _media_tokens(message: Message, rules: CountingRules, count: Count) -> int:
    return sum(media_tokens(media, rules, count) for media in message.media)


def _calls_tokens(message: Message, rules: CountingRules, count: Count) -> int:
    """Return the tokens of a message's calls, without the parallel calls that `_parallel_tokens` counts."""
    apart = (*(call for call in message.calls if not call.id), *message.settled)
    tokens = sum(3 + count(call.name) + count(call.arguments) for call in apart)
    calls = _tool_calls(message)
    tokens += sum(rules.call_extra if call.kept else rules.unstored_call_extra for call in calls)
    if rules.one_by_one is not None:
        return tokens + sum(rules.one_by_one.call + count(call.name) + count(call.arguments) for call in calls)
    if calls and rules.gpt_5:
        return tokens + 4 + sum(5 + count(call.name) + count(call.arguments) for call in calls)
    if len(calls) == 1:
        return tokens + 2 + count(f"functions.{calls[0].name}") + count(_compact(calls[0].arguments))
    return tokens


def _parallel_tokens(calls: Iterable[ToolCall], results: Sequence[str], count: Count) -> int:
    """Return the tokens of parallel calls, which are one text, and of their results, which are one JSON array."""
    uses = ",".join(
        f'{{"recipient_name":{_json_text(f"functions.{call.name}")},"parameters":{_compact(call.arguments)}}}'
        for call in calls
    )
    tokens = count(f'{{"tool_uses":[{uses}]}}')
    return tokens + 16 + count(f"[{', '.join(results)}]") if results else tokens + 8


def _tool_calls(message: Message) -> list[ToolCall]:
    return [call for call in message.calls if call.id]


def _compact(arguments: str) -> str:
    """Return JSON without whitespace and needless escapes; any other text unchanged."""
    if len(arguments) > LONGEST_COMPACTED:
        return arguments
    try:
        compact = msgspec.json.format(arguments, indent=-1)
    except (ValueError, RecursionError):
        return arguments
    return _ESCAPES.sub(lambda escapes: _json_text(json.loads(f'"{escapes[0]}"'))[1:-1], compact)


def _json_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# The TypeScript in which OpenAI's models see tools. No schema raises an error: types that Steno does not understand
# become `any`.

MAX_DEPTH = 40
"""Greatest depth of nested schemas. Deeper schemas become `any`."""
REPEATED_CHARACTERS = 500_000
"""Maximum characters of the types written for `$ref` and for lists of types. Without a maximum, definitions that repeat
other definitions could grow exponentially."""

NAMES = {"integer": "number", "number": "number", "boolean": "boolean", "null": "null", "string": "string"}


def functions_text(tools: Iterable[Tool]) -> str:
    writer = _Writer()
    functions = "".join(f"{writer.function(tool)}\n\n" for tool in tools)
    return f"namespace functions {{\n\n{functions}}} // namespace functions"


def comment_lines(text: str) -> list[str]:
    """Return each line of the text as `// ...`, without blank lines around the text."""
    return [f"// {line.strip()}".rstrip() for line in text.strip().splitlines()]


class _Writer:
    """Writer of TypeScript types. It follows references, and limits depth and length."""

    def __init__(self) -> None:
        self._root: Mapping[str, Any] = {}
        self._following: set[str] = set()
        self._room = REPEATED_CHARACTERS
        self._depth = 0

    def function(self, tool: Tool) -> str:
        self._root = tool.parameters
        arguments = ""
        if _properties(tool.parameters):
            head = "".join(f"{line}\n" for line in _comment(tool.parameters))
            arguments = f"_: {head}{self._object(tool.parameters, '')}"
        return "\n".join((*comment_lines(tool.description), f"type {tool.name} = ({arguments}) => any;"))

    def _type(self, schema: Any, indent: str) -> str:
        """`indent`: indentation of an object's properties, if each has its own line."""
        return " | ".join(self._options(schema, indent))

    def _options(self, schema: Any, indent: str) -> list[str]:
        if not isinstance(schema, Mapping) or self._depth == MAX_DEPTH or self._room <= 0:
            return ["any"]
        self._depth += 1
        options = self._known_options(schema, indent)
        self._depth -= 1
        return options

    def _known_options(self, schema: Mapping[str, Any], indent: str) -> list[str]:
        match schema:
            case {"$ref": str(reference)}:
                return self._referenced(reference, indent)
            case {"enum": [_, *_] as values}:
                return [_literal(value) for value in values]
            case {"const": value}:
                return [_literal(value)]
            case {"anyOf": [_, *_] as options} | {"oneOf": [_, *_] as options}:
                return self._union(options, indent)
            case {"type": [_, *_] as names}:
                distinct = dict.fromkeys(name for name in names if isinstance(name, str))
                return self._repeated([self._named(name, schema, indent) for name in distinct] or ["any"])
            case {"type": str(name)}:
                return [self._named(name, schema, indent)]
            case _:
                return ["any"]

    def _union(self, options: list[Any], indent: str) -> list[str]:
        """Return the types of a union. If one is null, each type has its own line, with its format as a comment."""
        types = [self._type(option, indent) for option in options]
        if "null" not in types:
            return types
        return ["".join(f"\n{indent[2:]} | {name}{_format(o)}" for name, o in zip(types, options, strict=True))]

    def _referenced(self, reference: str, indent: str) -> list[str]:
        """Return the types of a definition; a reference to itself becomes `any`."""
        if reference in self._following:
            return ["any"]
        self._following.add(reference)
        options = self._options(_resolve(self._root, reference), indent)
        self._following.remove(reference)
        self._room -= len(reference)
        return self._repeated(options)

    def _repeated(self, texts: list[str]) -> list[str]:
        """Return the texts, and subtract their lengths from the remaining part of `REPEATED_CHARACTERS`."""
        self._room -= sum(map(len, texts))
        return texts

    def _named(self, name: str, schema: Mapping[str, Any], indent: str) -> str:
        if name == "object":
            return self._object(schema, indent)
        if name != "array":
            return NAMES.get(name, "any")
        options = self._options(schema.get("items"), indent)
        text = " | ".join(options)
        return f"({text})[]" if len(options) > 1 and "\n" not in text else f"{text}[]"

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        """Return an object type: one line, or one line for each property if any has a comment."""
        properties = _properties(schema)
        if not properties:
            return "object"
        required = schema.get("required")
        required = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        lines: list[str] = []
        fields: list[str] = []
        for name, value in properties.items():
            field = f"{name}{'' if name in required else '?'}: {self._type(value, indent + '  ')}"
            fields.append(field)
            lines += (*_comment(value), f"{field},{_default(value)}")
        if len(lines) == len(fields) and not any("\n" in line or "//" in line for line in lines):
            return f"{{ {', '.join(fields)} }}"
        return "\n".join(("{", *(f"{indent}{line}" for line in lines), f"{indent[2:]}}}"))


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    """Return the schema at a path such as `#/$defs/Name`; None if missing."""
    value: Any = root
    for key in reference.removeprefix("#").split("/")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _comment(schema: Any) -> list[str]:
    if not isinstance(schema, Mapping):
        return []
    texts = [text for key in ("title", "description") if isinstance(text := schema.get(key), str)]
    return comment_lines("\n\n".join(texts))


def _format(schema: Any) -> str:
    format_ = schema.get("format") if isinstance(schema, Mapping) else None
    return f" // format: {format_}" if isinstance(format_, str) else ""


def _default(schema: Any) -> str:
    if not isinstance(schema, Mapping) or "default" not in schema:
        return ""
    value = schema["default"]
    return f" // default: {value if isinstance(value, str) and 'enum' in schema else _literal(value)}"


def _literal(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "any"
