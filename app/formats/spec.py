"""A format as a table: what can be said of an API for conversations without code.

Each format has one, in `spec.py` of its folder; code stands there only for what a table cannot say. Where a vendor
renames a member, adds a reason to finish or a type of tool, its row changes and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from app.compaction.chunks import Ending
from app.conversation.messages import Kind


class FormatSpec(Struct, frozen=True, kw_only=True):
    """One API for conversations."""

    name: str
    page: str
    """The vendor's page that the rows come from."""
    noun: str
    """Noun for an answer in one piece, in errors."""

    path: bytes
    """Path at which a client posts its requests, and where they are compacted."""
    other_paths: tuple[bytes, ...] = ()
    """Beginnings of other paths of its API. What is sent there goes to the same upstreams, as it comes."""
    counting_path: bytes | None = None
    """Path at which a request is posted to be counted and not to be answered."""
    largest_body: int = 50_000_000
    """Bytes of a request that the vendor takes."""

    history: str
    """Member of a request that holds its messages."""
    own_members: tuple[str, ...] = ("context", "conversation_id")
    """Steno's own members of a request: cut out before forwarding, because a provider refuses what it does not know."""
    output_members: tuple[str, ...]
    """Members that bound the answer; the first that is given counts."""
    declaring_members: tuple[str, ...]
    """Members beside the messages that cost prompt tokens."""
    tool_members: tuple[str, ...] = ("tools",)
    """Members that declare tools."""
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

    kinds: Mapping[str, Kind]
    """Kinds of messages by their role; any other role is `Kind.OTHER`."""
    volatile_members: frozenset[str]
    """Members of messages and parts that clients move or drop between turns without changing what a message means:
    digests leave them out."""

    endings: Mapping[str, Ending]
    """Endings of an answer by its reasons to finish; any other reason is `Ending.OTHER`."""
    cut_off: str
    """The reason to finish of an answer that reached its bound."""
