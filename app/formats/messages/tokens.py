"""Costs of prompts in this format. Claude is counted by what its vendor says about it, as far as that goes; what runs
elsewhere has a template of its own and counts alike in every format.

Amounts are Claude's own tokens. An estimate is in those of o200k_base, of which calibration makes Claude's.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from app.tokens.calibration import claude_version, whole_ratio
from app.tokens.pictures import Area, Pages
from app.tokens.rules import WHOLE, CountingRules, Encrypted, OneByOne, rules_for

REPLY, MESSAGE = 3, 3
"""Around the whole, and around each message beside its role."""
CALL, RESULT = 30, 18
"""Tokens around each call, and around each result."""
SCHEMA = 150
"""Around a schema that the answer has to follow."""
FILE = 25
"""Around a file."""
PAGE = 1_570
"""A page's picture, at most."""
POINTS = 4.0
"""Pixels of a page's picture for each of its points: it is drawn at twice its size."""
UNKNOWN_FILE = 1_600
"""A file of which nothing is known is taken for a page."""
PIXELS = 750
"""Pixels of a picture for a token."""
ENCRYPTED = Encrypted(250, 4.9)
"""A thought's signature: beside a fixed part it grows with what was thought."""

_PREAMBLES: tuple[tuple[str, int, int], ...] = (
    ("opus-5", 286, 406),
    ("opus-4-8", 290, 410),
    ("opus-4-7", 675, 804),
    ("opus-3", 530, 281),
    ("3-opus", 530, 281),
    ("3-sonnet", 159, 235),
    ("3-haiku", 264, 340),
    ("3-5-haiku", 264, 340),
)
"""Tokens before the tools, and where the answer has to be a call, of models that differ from those of their version."""
_PREAMBLES_SINCE = (((4, 7), 354, 474), ((4, 5), 497, 589), ((0, 0), 346, 313))
"""Preambles of the other models, from a version on; the newest first."""


@lru_cache(maxsize=1_024)
def token_rules(model: str, host: str = "") -> CountingRules:
    """Rules by which a model at a host counts."""
    rules = rules_for(model, host)
    version = claude_version(model)
    if version is None:
        return rules
    ratio = whole_ratio(model)

    def own(tokens: int) -> int:
        return round(tokens / ratio)

    preamble, must_call = _preambles(model, version)
    return replace(
        rules,
        pictures=Area(PIXELS * ratio, own(4_784 if version >= (4, 7) else 1_600)),
        reply_prime=own(REPLY),
        message=MESSAGE - 1,
        schema_extra=own(SCHEMA),
        declares_apart=True,
        one_by_one=OneByOne(own(preamble), own(must_call), own(CALL), own(RESULT)),
        drops_reasoning=_drops_reasoning(model, version),
        encrypted=replace(ENCRYPTED, per_token=ENCRYPTED.per_token * ratio),
        files=Pages(own(PAGE), POINTS / (PIXELS * ratio), own(FILE), own(UNKNOWN_FILE)),
        variant=WHOLE,
    )


def _preambles(model: str, version: tuple[int, int]) -> tuple[int, int]:
    name = model.lower().replace(".", "-")
    for known, preamble, must_call in _PREAMBLES:
        if known in name:
            return preamble, must_call
    return next((preamble, must_call) for since, preamble, must_call in _PREAMBLES_SINCE if version >= since)


def _drops_reasoning(model: str, version: tuple[int, int]) -> bool:
    """Whether thoughts of earlier turns are left out of the prompt: up to Opus 4.1, and 4.5 of the smaller ones."""
    return version < ((4, 5) if "opus" in model.lower() else (4, 6))
