"""Requests: a Responses body as far as Steno reads it, and the body that goes on in its place.

The history is `input`: a text, or items. `instructions` stand beside it and are the first of the raw messages, with
their key. What a provider keeps itself, or is asked to compact itself, is handed off.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from app.conversation.reasons import Code, Reason
from app.formats.beginnings import Beginnings
from app.formats.members import RawObject, Unreadable
from app.formats.objects import decoded_object, object_of, objects_in, text_at
from app.formats.requests import (
    Body,
    check_compaction,
    check_number,
    elements_of,
    has_known_tools,
    is_function,
    model_of,
    read_options,
    request_of,
    response_format_of,
    source_of,
    tool_of,
    unread,
)
from app.formats.responses.items import INSTRUCTIONS, compacted_upto, slots, type_of
from app.formats.types import BOUNDS, BodyBounds, WireRequest
from app.tokens.declarations import Declarations

NAME = "responses"
PATH = b"/v1/responses"
EXTENSIONS = ("image",)
"""Members by which a provider changes the prompt."""
STATE_MEMBERS = ("previous_response_id", "conversation")
"""Members that name what the provider has kept, and puts before the input."""
CODEX_METADATA = "x-codex-turn-metadata"
CODEX_PROMPT = "You are performing a CONTEXT CHECKPOINT COMPACTION"
"""Beginning of Codex's request to a model that does not compact by itself."""


class ResponsesRequest(WireRequest, frozen=True):
    """A request as far as Steno reads it."""

    HISTORY = "input"
    OUTPUT_MEMBERS = ("max_output_tokens",)
    DECLARING_MEMBERS = ("tools", "tool_choice", "text")
    CACHED_MEMBERS = ("tools", "parallel_tool_calls")

    stores: bool = True
    """Whether the provider keeps the answer, so that a later request may name it."""

    @property
    def is_typical(self) -> bool:
        """Whether the costs of the prompt are known: not with text that the provider adds or takes away.

        A schema is text to some models and costs nothing at others; what cannot be read is only guessed.
        """
        schema = b"json_schema" in (self.source.raw("text") or b"")
        cut = self.source.value("truncation") == "auto"
        extended = any(name in self.source for name in EXTENSIONS)
        return has_known_tools(self.source, is_function) and not (schema or cut or extended)

    def declarations(self) -> Declarations:
        return read_declarations(self.source)

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:  # noqa: ARG002 - it is given unasked
        """The body with other items; an input that was a text becomes a list only where it has others beside it."""
        items = [raw for raw in raw_messages if not INSTRUCTIONS.match(raw)]
        if len(items) == 1 and items[0].startswith(b'"'):
            return self.source.spliced({"input": items[0]}, self.OWN_MEMBERS)
        return self.source.spliced({"input": b"[" + b",".join(map(as_item, items)) + b"]"}, self.OWN_MEMBERS)


def as_item(raw: bytes) -> bytes:
    """A raw message as it may stand among others."""
    return b'{"type":"message","role":"user","content":%b}' % raw if raw.startswith(b'"') else raw


def read_request(body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> ResponsesRequest:
    """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

    What may be large is looked at here, so that it is done beside the event loop where the body is.
    """
    source, known = source_of(body, bounds, beginnings)
    elements = elements_in(source)
    compacted = compacted_upto(elements)
    if compacted:
        check_compaction(decoded_object(elements[compacted - 1], "An item"), "input")
    raw_messages, places = _raw_messages(source, elements, compacted)
    check_number(len(raw_messages), bounds, "items")
    hands_off = _hands_off(source, elements)
    # A template of the provider's may name the model, and hold all of the input.
    model = "" if hands_off and source.value("model") is None else model_of(source)
    if source.raw("input") in (None, b"null") and not hands_off:
        raise Unreadable("The request has no input.")
    if beginnings is not None and (source.raw("input") or b"").startswith(b"["):
        beginnings.keep(source, "input", elements, known)
    return request_of(
        ResponsesRequest,
        Body(source, model, read_options(source), (), elements),
        raw_messages,
        places.__getitem__,
        hands_off=hands_off,
        stores=source.value("store") is not False,
    )


def elements_in(source: RawObject) -> tuple[bytes, ...]:
    """The items of the input, each as it came; a text is one."""
    raw = source.raw("input") or b"null"
    if raw.startswith(b'"'):
        return (raw,)
    return () if raw == b"null" else tuple(source.elements("input"))


def _raw_messages(source: RawObject, elements: Sequence[bytes], compacted: int) -> tuple[tuple[bytes, ...], list[int]]:
    """The raw messages, and which of them each item of the input is, as a client counts them."""
    member = source.members.get("instructions") if isinstance(source.value("instructions"), str) else None
    leading = () if member is None else (source.text[member.key_start : member.stop],)
    first = (b",".join(elements[:compacted]),) if compacted else ()
    raw_messages = (*leading, *first, *elements[compacted:])
    skipped = len(leading) + len(first) - compacted
    return raw_messages, [max(len(leading), place + skipped) for place in range(len(elements))]


def _hands_off(source: RawObject, elements: Sequence[bytes]) -> Reason | None:
    """Reason to leave a request to the provider, or None.

    The content of an item that refers to another by its id cannot be seen: a summary would leave it out, and a cut
    might part it from its call. Reasoning without content is sealed anyway, and no such item.
    """
    if any(source.value(name) is not None for name in STATE_MEMBERS) or any(map(_is_reference, elements)):
        return Reason(Code.SERVER_STATE)
    if source.value("prompt") is not None:
        return Reason(Code.PROMPT_TEMPLATE)
    if source.value("background") is True:
        return Reason(Code.BACKGROUND)
    if _asks_for_compaction(source, elements):
        return Reason(Code.NATIVE_COMPACTION)
    return Reason(Code.CLIENT_COMPACTION) if _compacts_itself(source, elements) else None


def _is_reference(raw: bytes) -> bool:
    # Nearly all items say what they are; reading each of them would take as long as reading the request.
    if b'"item_reference"' not in raw and (b'"type"' in raw or b'"role"' in raw):
        return False
    return raw.startswith(b"{") and type_of(decoded_object(raw, "An item")) == "item_reference"


def _asks_for_compaction(source: RawObject, elements: Sequence[bytes]) -> bool:
    """Whether the provider is asked to compact: now, or from a threshold on."""
    if elements and _is_trigger(elements[-1]):
        return True
    managed = source.value("context_management") if "context_management" in source else None
    return any(entry.get("type") == "compaction" for entry in objects_in(managed))


def _is_trigger(raw: bytes) -> bool:
    """Whether an item asks for a compaction in place of an answer."""
    return b'"compaction_trigger"' in raw and type_of(decoded_object(raw, "An item")) == "compaction_trigger"


def _compacts_itself(source: RawObject, elements: Sequence[bytes]) -> bool:
    """Whether the client compacts its history itself, as Codex says beside its input, or in what it asks for."""
    said = source.value("client_metadata")
    turn = said.get(CODEX_METADATA) if isinstance(said, dict) else None
    if isinstance(turn, str):
        try:
            metadata = msgspec.json.decode(turn)
        except (msgspec.DecodeError, RecursionError):
            metadata = None
        if isinstance(metadata, dict) and metadata.get("request_kind") == "compaction":
            return True
    last = elements[-1] if elements else b""
    if CODEX_PROMPT.encode() not in last or not last.startswith(b"{"):
        return False
    return any(text.startswith(CODEX_PROMPT) for _, text in slots(decoded_object(last, "An item")))


def read_declarations(source: RawObject) -> Declarations:
    """The declarations, without whatever is of the wrong type."""
    tools = elements_of(source, "tools")
    choice = source.value("tool_choice")
    held = object_of(object_of(source.value("text")).get("format"))
    return Declarations(
        tools=tuple(tool_of(tool) for tool, _ in tools if tool.get("type") == "function"),
        choice=choice if isinstance(choice, str) else "",
        forced=text_at(object_of(choice), "name"),
        response_format=response_format_of(held) if held.get("type") == "json_schema" else None,
        others=(
            *(text for tool, text in tools if tool.get("type") != "function"),
            *unread(source, ResponsesRequest.DECLARING_MEMBERS),
        ),
    )
