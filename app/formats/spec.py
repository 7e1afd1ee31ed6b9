"""A format as a table: what can be said of an API for conversations without code.

Each format has one, in `spec.py` of its folder. Where a vendor adds a reason to finish or a type of tool, its row
changes. Three things stand elsewhere: members of `usage` in `usage.py`, parts of messages in the format's module of
messages, and the first events of a stream in its `answers.py`.
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
    """How a summary is asked for in a format."""

    quoting: Callable[[str, str], Mapping[str, Any]]
    """Makes the members of a request out of instructions and a transcript."""
    forbidding: tuple[tuple[str, str, Any], ...] = ()
    """Members that declare tools, each with the member and its value that forbid calls. The tools have to stay: they
    are a part of the cached prompt. Without any, providers refuse a choice among them."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers that the format wants beside what a body needs, where the caller does not give them; in lower case."""
    own_members: frozenset[str]
    """Members that a call says by itself, or leaves out on purpose; an operator may add others."""
    optional: tuple[str, ...]
    """Members that a call can do without, beside those that the operator adds."""
    otherwise_named: Mapping[str, Pattern[bytes]] = {}
    """Patterns of refusals that name an optional member and are about something else."""
    also_named: Mapping[str, Pattern[bytes]] = {}
    """Patterns of refusals that are about an optional member without its name."""
    caps: tuple[str, str]
    """Names of the member that bounds the answer: for most models, and for those that reason first."""
    least_output: int = 0
    reasoning: Pattern[str] = re.compile(r"(^|/)(o\d|gpt-5)")
    """Models that reason first, without being asked to."""
    restrained: Callable[[str], Mapping[str, Any]]
    """Makes the members by which a model that reasons first is asked to reason little."""
    holder: str = ""
    """Member in which the other members of `options` stand."""
    streaming: bytes = b""
    """Ending of the path, in place of the request's own, by which an answer is streamed."""
    said: Mapping[str, Any] = MappingProxyType({"stream": True})
    """Members of every call, among them that the answer is to be streamed."""


class FormatSpec(Struct, frozen=True, kw_only=True):
    name: str
    page: str
    noun: str

    path: bytes
    """Path at which a client posts its requests, and where they are compacted; `{model}` stands for the model."""
    address: Pattern[bytes] | None = None
    """Pattern of paths that name a model and a method, where those do; of `methods` are requests that are compacted."""
    methods: frozenset[bytes] = frozenset()
    early_is_content: bool = False
    """Whether clients keep early frames in their histories, where a call may not be taken behind one: a request with
    tools gets none unasked."""
    other_paths: tuple[bytes, ...] = ()
    """Beginnings of other paths of its API. What is sent there goes to the same upstreams, as it comes."""
    counting_path: bytes | None = None
    """Path at which a request is posted to be counted and not to be answered."""
    largest_body: int = 50_000_000
    """Bytes of a request that the vendor takes."""

    history: str
    user_message: Callable[[str], Mapping[str, Any]]
    """Makes a message of the user out of a text: notes of Steno's, and what a summary call ends with."""
    own_members: tuple[str, ...] = ("context", "conversation_id")
    """Steno's own members of a request: cut out before forwarding, because a provider refuses what it does not know."""
    output_members: tuple[str, ...]
    """Members that bound the answer; the first that is given counts."""
    declaring_members: tuple[str, ...]
    """Members beside the messages that cost prompt tokens."""
    tool_members: tuple[str, ...] = ("tools",)
    cached_members: tuple[str, ...] = ("tools",)
    """Members that stand before the messages in a prompt, so that the provider's cache depends on them."""
    cache_key_member: str = "prompt_cache_key"
    """Member that shows the provider's cache which requests are alike; empty where the format has none."""
    schema_members: tuple[str, ...]
    """Members that may hold a schema for the answer: text to some models, and no cost at others."""
    extending_members: tuple[str, ...]
    """Members by which a provider puts text of its own into the prompt, or leaves some out."""
    client_tools: frozenset[str | None]
    """Types of tools that the client runs; what others cost is not known."""

    roles: Mapping[str, Kind]
    volatile_members: frozenset[str]
    """Members of messages and parts that clients move or drop between turns without changing what a message means:
    digests leave them out."""

    beside: Pattern[bytes] | None = None
    """Beginning, with its key, of a member with the instructions that stands beside the history: it is the first of the
    raw messages."""
    length_tells_window: bool = True
    """Whether an answer that ends at its length may have filled the window: not where the answer has one of its own."""

    holders: tuple[str, ...] = ()
    """Members of a frame in which an answer stands that is not the frame itself."""
    usage: str = "usage"
    usage_option: Pattern[bytes] | None = None
    """Pattern of refusals of the option by which a stream is asked for its usage; None where it tells it unasked."""
    model: str = "model"
    whole: tuple[Path, ...]
    """Members of which an answer in one piece has one."""
    texts: tuple[Path, ...]
    """The model's texts, in a frame or in an answer in one piece."""
    late_texts: tuple[Path, ...] = ()
    """Texts of the frame that ends an answer, which count where none came before."""
    calls: tuple[Path, ...]
    """Calls that the model makes, or their types."""
    refusals: tuple[Path, ...] = ()
    """The model's words that it does not answer."""
    reasons: tuple[Path, ...]
    """Why an answer finished; the first that is given counts."""
    usual_reason: str = ""
    """The reason of an answer in one piece that gives none."""
    done_ends: bool = False
    """Whether `[DONE]` ends an answer that gave no reason to finish."""
    endings: Mapping[str, Ending]
    """Endings of an answer by its reasons to finish; any other reason is `Ending.OTHER`."""
    cut_off: str
    """The reason to finish of an answer that reached its bound."""

    summary: SummarySpec
