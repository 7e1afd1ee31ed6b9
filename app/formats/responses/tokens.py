"""Costs of prompts in this format. OpenAI's models are shown tools, calls and schemas otherwise than in the older one;
what runs elsewhere has a template of its own and counts alike in both.

Measured on prompts whose size the providers reported (docs/estimates.md).
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec.structs import replace

from app.tokens.pictures import Pages
from app.tokens.rules import GPT_5_TOOLS, WHOLE, CountingRules, Encrypted, rules_for

VARIANT = "items"
TOOLS_BEFORE = -3
"""Tokens of its predecessors' tools: their tools have no headings here, which are counted with them."""
CALL, UNKEPT_CALL_BEFORE = 1, -2
"""Tokens that a call costs more; the latter of gpt-5's predecessors, where it has no id of its own."""
REQUIRED = 8
"""Tokens that gpt-5's tools cost more where one has to be called."""
PAGES = Pages(8, file=6)
"""Costs of a file: its text, but for a few tokens around it and its pages."""
SCHEMA_BEFORE = 1
"""Tokens around the response format, which gpt-5 has not."""
GROK_PREAMBLE, GROK_TOOLS = 185, 50
"""Tokens with which every prompt of grok's begins, and tokens around its tools."""
GROK_ENCRYPTED = Encrypted(0, 5.8)
"""Tokens of grok's earlier reasoning, which it reads again in every turn."""

_OPENAI = re.compile(r"(?:.*/)?(?:openai\.)?(?P<name>(?:ft:)?(?:chatgpt|gpt-(?!oss)|codex|computer-use|o\d).*)")


@lru_cache(maxsize=1_024)
def token_rules(model: str, host: str = "") -> CountingRules:
    """Rules by which a model at a host counts."""
    if "grok" in model.lower():
        rules = rules_for(model, host)
        return replace(
            rules,
            reply_prime=rules.reply_prime + GROK_PREAMBLE,
            declares_apart=True,
            tools_alone=GROK_TOOLS,
            encrypted=GROK_ENCRYPTED,
            variant=WHOLE,
        )
    if not (found := _OPENAI.fullmatch(model.lower())):
        return replace(rules_for(model, host), drops_reasoning=True)
    # Codex's own small model is a tuned o4-mini.
    rules = rules_for("o4-mini" if found["name"].startswith("codex") else found["name"], host)
    return replace(
        rules,
        declares_apart=True,
        tools_alone=GPT_5_TOOLS if rules.gpt_5 else TOOLS_BEFORE,
        call_extra=CALL,
        unstored_call_extra=CALL if rules.gpt_5 else UNKEPT_CALL_BEFORE,
        required_extra=REQUIRED if rules.gpt_5 else 0,
        files=PAGES,
        schema_extra=0 if rules.gpt_5 else SCHEMA_BEFORE,
        drops_reasoning=True,
        variant=VARIANT,
    )
