"""Counters to be scored against prompt sizes that providers reported: a request in, tokens out."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from app.core.history.identity import Identity
from app.core.tokens.estimate import estimate
from app.core.tokens.rules import rules_for
from app.tokens.tokenizer import Tokenizer
from app.wire.chat_completions.format import CHAT_COMPLETIONS
from app.wire.chat_completions.messages import read_message
from app.wire.reader import MessageReader

IDENTITY = Identity(b"benchmark")


def steno(request: dict[str, Any]) -> int:
    """Steno's estimate, from the bytes it would receive; nothing is remembered between requests but the tables."""
    read = CHAT_COMPLETIONS.read(msgspec.json.encode(request))
    rules = rules_for(read.model)
    messages = MessageReader(IDENTITY, read_message).read(read.raw_messages)
    return estimate(messages, read.declarations(), rules, _tokenizer().counter(rules.encoding))


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer()
