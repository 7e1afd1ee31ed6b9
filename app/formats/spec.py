"""Fields of a format's table: the properties of a conversation API that need no code.

Each format has a table, its `SPEC`, with the names of members, types and paths that Steno reads and writes: in
`chat_completions.py`, `gemini.py`, `messages/messages.py` and `responses/items.py`. Where to enter a vendor's change:
- a new finish reason: `endings`; for a full window of any format: `_WINDOW_FULL` below;
- a finish reason at another place in the answer: `reasons`; a stream that may end with `[DONE]` alone: `done_ends`;
- a renamed or new usage member: `MEMBERS` in `usage.py`, because providers mix the names of several formats;
- a renamed output cap: `output_members`, and `own_members` and `caps` of the `summary`;
- a new type of tool that the client runs: `client_tools`; in Responses also its items, in `CALLS` and `OUTPUTS`;
- a new item of a tool that the provider of Responses runs: `SETTLED`;
- a new part of a message: code beside the table, in `read_message`, `read_content` (Gemini) or `read_item` (Responses).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum, auto
from re import Pattern
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field

from app.conversation.messages import Kind
from app.formats.raw_json import Path
from app.tokens.costs import UNBILLED, Bill, Tokens

CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT = "cache_control", "prompt_cache_breakpoint"
"""Members of parts that mark the end of a cached prompt, at Anthropic and at OpenAI."""


class Ending(Enum):
    FINISHED = auto()
    """The model ended the answer by itself."""
    CUT_OFF = auto()
    """A length limit ended the answer."""
    REFUSED = auto()
    CALLED = auto()
    """The model called a tool, with or without text."""
    OTHER = auto()


class SummaryAnswer(Struct, frozen=True):
    text: str
    ending: Ending = Ending.FINISHED
    word: str = ""
    """Finish reason; empty if the model finished the answer by itself."""
    usage: Tokens = field(default_factory=Tokens)
    bill: Bill = UNBILLED
    model: str = ""
    """Model that answered, which may be a fallback model."""
    upstream: str = ""
    """Name of the upstream that answered, as in the settings."""
    format: str = ""
    """Name of the answer's wire format."""


class SummarySpec(Struct, frozen=True, kw_only=True):
    """Form of Steno's own summary calls. A call contains a transcript, or continues the client's prompt."""

    quoting: Callable[[str, str], Mapping[str, Any]]
    """Function that takes the instructions and a transcript, and returns the members of a call."""
    forbidding: tuple[tuple[str, str, Any], ...] = ()
    """Rules `(member, other, value)` against tool calls: if a request has `member`, Steno sets `other` to `value`."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers in lower case that the format requires. Steno adds them if the client did not send them."""
    own_members: frozenset[str]
    """Members that only Steno may set. The operator's parameters may not contain them."""
    optional: tuple[str, ...]
    """Members that Steno stops sending once a provider's error names them, even if the operator set them."""
    other_errors: Mapping[str, Pattern[bytes]] = {}
    """Patterns of errors by optional member. Such an error names the member, but the member is not its cause."""
    unnamed_errors: Mapping[str, Pattern[bytes]] = {}
    """Patterns of errors by optional member. Such an error does not name the member, but the member is its cause."""
    caps: tuple[str, str]
    """Names of the output cap: for most models, and for models that reason by default."""
    least_output: int = 0
    """Fewest tokens that the provider accepts as an output cap."""
    reasoning: Pattern[str] = re.compile(r"(^|/)(o\d|gpt-5)")
    """Pattern of the names of models that reason by default."""
    restrained: Callable[[str], Mapping[str, Any]]
    """Function that returns the members that limit a model's reasoning, if the model reasons by default."""
    options_member: str = ""
    """Object that contains the options of a call, such as its output cap; empty if they are members of the body."""
    streaming: bytes = b""
    """End of the path, with the query, that makes the answer a stream; empty if a member of the body does this."""
    always_sent: Mapping[str, Any] = MappingProxyType({"stream": True})
    """Options of every call."""


_WINDOW_FULL = re.compile(r"context\w*(exceed|exhaust|overflow|limit|reached|full)|model_length$", re.IGNORECASE)
"""Pattern of finish reasons for a full window. OpenAI's `length` does not match: it may be the client's own cap."""
LONGEST_REASON = 100


def says_window_full(finish: object) -> bool:
    """Return whether a finish reason means that the model's window was full."""
    return isinstance(finish, str) and len(finish) <= LONGEST_REASON and _WINDOW_FULL.search(finish) is not None


class FormatSpec(Struct, frozen=True, kw_only=True):
    """Table of a format: the names that Steno reads and writes."""

    name: str
    page: str

    path: bytes
    """Path of Steno's own calls, with `{model}` for the model. Without an `address`, clients use this path, too."""
    address: Pattern[bytes] | None = None
    """Pattern of paths at which Steno compacts; they have a model and a method. If None, it compacts only at `path`."""
    methods: frozenset[bytes] = frozenset()
    early_is_content: bool = False
    """Whether frames that Steno sends before the answer enter the client's history. A provider may refuse a tool call
    after such a frame. So if a request has tools, Steno sends these frames only if the client asks for them."""
    other_paths: tuple[bytes, ...] = ()
    """Prefixes of other paths of the API. Steno forwards their requests unchanged, to upstreams with this API."""
    counting_path: bytes | None = None
    """Path at which the provider counts the tokens of a prompt."""
    largest_body: int = 50_000_000
    """Maximum bytes of a request that the vendor accepts."""

    history: str
    """Member with the messages."""
    user_message: Callable[[str], Mapping[str, Any]]
    """Function that returns a user message with a text: a note, or the instructions at the end of a summary call."""
    output_members: tuple[str, ...]
    """Members with the output cap. The first one in a request counts."""
    output_parents: tuple[str, ...] = ()
    """Objects that contain the output caps; empty if the caps are members of the body."""
    declaring_members: tuple[str, ...]
    """Members that cost prompt tokens, in addition to the messages."""
    tool_members: tuple[str, ...] = ("tools",)
    cached_members: tuple[str, ...] = ("tools",)
    """Members that the provider puts before the messages. A change of them invalidates the provider's cache."""
    cache_key_member: str = "prompt_cache_key"
    """Member with the key of the provider's prompt cache; empty if the format has none."""
    schema_members: tuple[str, ...]
    """Members that may hold a schema for the answer. Only for some models does the schema cost prompt tokens."""
    extending_members: tuple[str, ...]
    """Members that make the provider add text to the prompt, or remove text. Steno cannot count such a prompt."""
    client_tools: frozenset[str | None]
    """Types of tools that the client runs. Steno does not know the prompt tokens of other tools."""

    roles: Mapping[str, Kind]
    volatile_members: frozenset[str]
    """Members of messages and parts that clients move or drop between turns. Digests of messages ignore them."""

    beside: Pattern[bytes] | None = None
    """Pattern of the key of a member with the instructions, if Steno reads this member as the first message."""
    length_tells_window: bool = True
    """Whether a full window may be the cause of a cut-off answer. False if the answer has a window of its own."""

    answer_members: tuple[str, ...] = ()
    """Members of a frame that may contain the answer object, with `usage` and `model`."""
    usage: str = "usage"
    """Member with the reported tokens."""
    usage_option: Pattern[bytes] | None = None
    """Pattern of errors that refuse the option to request a stream's usage; None if streams always report usage."""
    model: str = "model"
    whole: tuple[Path, ...]
    """Paths of objects and lists. An unstreamed answer has at least one of them."""
    texts: tuple[Path, ...]
    """Paths of the model's texts, in a frame or an unstreamed answer."""
    late_texts: tuple[Path, ...] = ()
    """Paths of texts in the last frame. These texts count only if no earlier frame had text."""
    calls: tuple[Path, ...]
    """Paths of the model's calls, or of their types."""
    refusals: tuple[Path, ...] = ()
    """Paths of the model's own refusals to answer."""
    reasons: tuple[Path, ...]
    """Paths of finish reasons. The first one present counts."""
    assumed_reason: str = ""
    """Finish reason that Steno assumes if an answer has ended without one."""
    done_ends: bool = False
    """Whether `[DONE]` ends an answer without a finish reason."""
    endings: Mapping[str, Ending]
    """Meanings of finish reasons. `_WINDOW_FULL` has precedence. Any other reason is `Ending.OTHER`."""

    summary: SummarySpec

    def ending_of(self, reason: object) -> Ending:
        """Return the meaning of a finish reason. A full window means `Ending.CUT_OFF`."""
        if says_window_full(reason):
            return Ending.CUT_OFF
        return self.endings.get(reason, Ending.OTHER) if isinstance(reason, str) else Ending.OTHER
