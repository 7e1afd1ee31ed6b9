"""Format tables: the properties of a conversation API that need no code.

Each format has a table in its `spec.py`. If a vendor adds a finish reason or a tool type, only a row changes.
Three things are elsewhere: members of `usage` in `usage.py`, parts of messages in the format's `format.py` or
`messages.py`, and the first events of a stream in its `answers.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from re import Pattern
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.raw_json import Path


class SummarySpec(Struct, frozen=True, kw_only=True):
    quoting: Callable[[str, str], Mapping[str, Any]]
    """Return the members of a request with instructions and a transcript."""
    forbidding: tuple[tuple[str, str, Any], ...] = ()
    """Tuples of a member that declares tools, and the member and value that forbid calling them. Tools stay in the
    request because the cached prompt includes them. Without tools, providers refuse the forbidding member."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that the format requires, unless the client sent them; in lower case."""
    own_members: frozenset[str]
    """Members that Steno sets or leaves out itself; the operator's parameters may not contain them."""
    optional: tuple[str, ...]
    """Members that Steno leaves out after a provider refused them; the operator's parameters are optional, too."""
    otherwise_named: Mapping[str, Pattern[bytes]] = {}
    """Patterns of refusals that name an optional member but have another cause."""
    also_named: Mapping[str, Pattern[bytes]] = {}
    """Patterns of refusals that an optional member causes although they do not name it."""
    caps: tuple[str, str]
    """Names of the output cap: for most models, and for models that reason first."""
    least_output: int = 0
    reasoning: Pattern[str] = re.compile(r"(^|/)(o\d|gpt-5)")
    """Pattern of the names of models that reason by default."""
    restrained: Callable[[str], Mapping[str, Any]]
    """Return the members that limit the reasoning of a model that reasons by default."""
    holder: str = ""
    """Member that contains all options; empty if they are members of the body."""
    streaming: bytes = b""
    """Method at the end of the path that requests a stream."""
    said: Mapping[str, Any] = MappingProxyType({"stream": True})
    """Options of every call, such as the one that requests a stream."""


class FormatSpec(Struct, frozen=True, kw_only=True):
    name: str
    page: str

    path: bytes
    """Path of the requests that Steno compacts; `{model}` is replaced by the model."""
    address: Pattern[bytes] | None = None
    """Pattern of paths that contain a model and a method, if the API has such. Steno compacts requests of `methods`."""
    methods: frozenset[bytes] = frozenset()
    early_is_content: bool = False
    """Whether clients store Steno's frames before the answer in their histories. A provider may refuse a tool call
    after such a frame, so a request with tools gets such frames only if the client requests them."""
    other_paths: tuple[bytes, ...] = ()
    """Prefixes of other paths of the API. Requests there go to the same upstreams unchanged."""
    counting_path: bytes | None = None
    largest_body: int = 50_000_000
    """Most bytes of a request that the vendor accepts."""

    history: str
    user_message: Callable[[str], Mapping[str, Any]]
    """Return a user message with a text: a note by Steno, or the instructions at the end of a summary call."""
    own_members: tuple[str, ...] = ("context", "conversation_id")
    """Steno's own members of a request, removed before forwarding because providers refuse unknown members."""
    output_members: tuple[str, ...]
    """Output caps; the first one in a request counts."""
    output_holders: tuple[str, ...] = ()
    """Members that contain the output caps; empty if they are members of the body."""
    declaring_members: tuple[str, ...]
    """Members other than the messages that cost prompt tokens."""
    tool_members: tuple[str, ...] = ("tools",)
    cached_members: tuple[str, ...] = ("tools",)
    """Members that precede the messages in a prompt, so that the provider's cache depends on them."""
    cache_key_member: str = "prompt_cache_key"
    """Member with the key of the provider's prompt cache; empty if the format has none."""
    schema_members: tuple[str, ...]
    """Members that may hold a schema for the answer, which costs prompt tokens with some models only."""
    extending_members: tuple[str, ...]
    """Members that make the provider add text to the prompt or remove text from it."""
    client_tools: frozenset[str | None]
    """Types of tools that the client runs; the prompt tokens of other tools are unknown."""

    roles: Mapping[str, Kind]
    volatile_members: frozenset[str]
    """Members of messages and parts that clients move or drop between turns; digests leave them out."""

    beside: Pattern[bytes] | None = None
    """Pattern of the key of a separate member with the instructions, which becomes the first raw message."""
    length_tells_window: bool = True
    """Whether `cut_off` may mean a full window; False if the answer has a window of its own."""

    holders: tuple[str, ...] = ()
    """Members of a frame that may contain the answer object."""
    usage: str = "usage"
    """Member with the reported tokens; `MEMBERS` in `usage.py` has the names of the numbers."""
    usage_option: Pattern[bytes] | None = None
    """Pattern of refusals of the option that requests usage in a stream; None if streams always report it."""
    model: str = "model"
    whole: tuple[Path, ...]
    """Paths of members; every unstreamed answer has at least one of these members."""
    texts: tuple[Path, ...]
    """Paths of the model's texts, in a frame or an unstreamed answer."""
    late_texts: tuple[Path, ...] = ()
    """Paths of texts in the last frame; they count if no earlier frame had text."""
    calls: tuple[Path, ...]
    """Paths of the model's calls, or of their types."""
    refusals: tuple[Path, ...] = ()
    """Paths of the model's own refusals to answer."""
    reasons: tuple[Path, ...]
    """Paths of finish reasons; the first one present counts."""
    usual_reason: str = ""
    """Finish reason assumed if an answer has none."""
    done_ends: bool = False
    """Whether `[DONE]` ends an answer without a finish reason."""
    endings: Mapping[str, Ending]
    """Endings by finish reason; any other reason is `Ending.OTHER`."""
    cut_off: str
    """Finish reason of an answer that reached its output cap."""

    summary: SummarySpec
