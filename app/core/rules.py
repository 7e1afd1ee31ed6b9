"""Rules: what differs between models in how a prompt is counted, found from the model's name.

Measured on prompts whose size the providers reported; other families count like gpt-4o, and calibration does the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from app.core.pictures import Patches, Tiles


@dataclass(frozen=True, slots=True)
class Rules:
    """How a family of models counts. There are few distinct values: counts are cached by them."""

    pictures: Tiles | Patches
    encoding: str = "o200k_base"
    reply_prime: int = 3
    """Tokens that open the reply, once a request."""
    tools_alone: int = 3
    """Tokens around the tools where no system message stands before them."""
    gpt_5: bool = False
    """Tools come with a preamble of their own, and parallel calls are written one by one."""


GPT_4O = Rules(Tiles(85, 170))
GPT_4 = replace(GPT_4O, encoding="cl100k_base")
O_SERIES = Rules(Tiles(75, 150), reply_prime=2, tools_alone=4)
GPT_5 = Rules(Tiles(70, 140), reply_prime=2, tools_alone=85, gpt_5=True)

_FAMILIES = tuple(
    (re.compile(pattern), rules)
    for pattern, rules in (
        (r"gpt-4(-|$)|gpt-3\.5|gpt-35", GPT_4),  # not gpt-4o, gpt-4.1, gpt-4.5
        (r"gpt-4o-mini", replace(GPT_4O, pictures=Tiles(2_833, 5_667))),
        (r"gpt-4\.1-mini", replace(GPT_4O, pictures=Patches(162, extra=2))),
        (r"gpt-4\.1-nano", replace(GPT_4O, pictures=Patches(246, extra=2))),
        (r"o4-mini", replace(O_SERIES, pictures=Patches(172, extra=1))),
        (r"o\d", O_SERIES),
        (r"gpt-5(\.\d+)?-mini", replace(GPT_5, pictures=Patches(120, extra=1))),
        (r"gpt-5(\.\d+)?-nano", replace(GPT_5, pictures=Patches(150, extra=1))),
        (r"gpt-5", GPT_5),
    )
)


def rules_for(model: str) -> Rules:
    """By the name after the last slash; that of a fine-tune (`ft:gpt-4o-mini:org::id`) holds its base model's."""
    name = model.rsplit("/", 1)[-1].removeprefix("ft:")
    return next((rules for pattern, rules in _FAMILIES if pattern.match(name)), GPT_4O)
