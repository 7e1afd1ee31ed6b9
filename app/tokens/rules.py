"""Counting rules: how each family of models counts a prompt, found from the model's name, and what pictures, recordings
and files cost by their size, never by their base64.

Measured on prompts whose size the providers reported. Other families count like gpt-4o, and calibration does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import sqrt

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.messages import Media

UNKNOWN_SIZE = (1024, 1024)
"""Pixels assumed for a picture behind a URL, which is never fetched."""
AUDIO_TOKENS_PER_SECOND = 10
AUDIO_TOKENS = 4
GLYPHS_PER_TOKEN = 3.8
"""On a page in English; spaces are often no glyphs."""
TILE = 512
PATCH = 32


class Tiles(Struct, frozen=True):
    """Tokens by squares of 512 pixels, once the picture is fitted into 2048 x 2048 and its short side to 768."""

    base: int
    tile: int

    def tokens(self, width: int, height: int, detail: str) -> int:
        if detail == "low":
            return self.base
        width, height = _shrunk(width, height, max(width, height), 2_048)
        width, height = _shrunk(width, height, min(width, height), 768)
        return self.base + self.tile * _squares(width, height, TILE)


class Fit(Struct, frozen=True):
    patches: int
    side: int
    """Pixels of the longer side."""


LOW = Fit(256, 512)


class Patches(Struct, frozen=True):
    """Tokens by squares of 32 pixels, once the picture is scaled down to what its `detail` allows."""

    hundredths: int
    """Cost of a patch in hundredths of a token."""
    extra: int
    high: Fit
    original: Fit | None = None
    """Size at `detail: original`, if the model knows it."""
    low: bool = False
    """Whether `detail: low` makes it smaller."""
    auto_original: bool = False
    """`original` holds where no detail is given."""

    def tokens(self, width: int, height: int, detail: str) -> int:
        return self.hundredths * _patches(width, height, self._fit(detail)) // 100 + self.extra

    def _fit(self, detail: str) -> Fit:
        if detail == "low" and self.low:
            return LOW
        if self.original and (detail == "original" or (self.auto_original and detail != "high")):
            return self.original
        return self.high


class Area(Struct, frozen=True):
    pixels_per_token: float
    most: int

    def tokens(self, width: int, height: int, _detail: str) -> int:
        return min(self.most, round(width * height / self.pixels_per_token))


class Pages(Struct, frozen=True):
    """Cost of files: the text of each page, and its picture."""

    page: int
    """Tokens of a page's picture, at most."""
    tokens_per_point: float | None = None
    """Tokens by a page's area; None where all pages cost the same."""
    file: int = 0
    """Tokens around a file."""
    unknown: int = 1_000
    """Tokens of a file behind a URL, or of one that is neither a PDF nor text."""

    def tokens(self, media: Media) -> int:
        page = self.page
        if self.tokens_per_point is not None and media.width > 0 < media.height:
            page = min(page, round(media.width * media.height * self.tokens_per_point))
        return self.file + media.pages * page + int(media.glyphs / GLYPHS_PER_TOKEN)


TEXT_ALONE = Pages(0)
"""Files that cost what is written in them."""


def media_tokens(
    media: Media,
    pictures: Tiles | Patches | Area,
    scale: float = 1.0,
    files: Pages = TEXT_ALONE,
    count: Callable[[str], int] = len,
) -> int:
    """Tokens of one part. `scale` is a factor of pictures; `count` counts the text of a file."""
    match media.kind:
        case "image":
            width, height = (media.width, media.height) if media.width > 0 < media.height else UNKNOWN_SIZE
            return round(pictures.tokens(width, height, media.detail) * scale)
        case "audio":
            return int(media.seconds * AUDIO_TOKENS_PER_SECOND) + AUDIO_TOKENS
        case _ if media.text:
            return files.file + count(media.text)
        case _:
            return files.tokens(media) if media.pages else files.unknown


def _squares(width: int, height: int, side: int) -> int:
    return -(-width // side) * -(-height // side)


def _shrunk(width: int, height: int, side: int, limit: int) -> tuple[int, int]:
    """Scale in proportion until `side` is within the limit."""
    if side <= limit:
        return width, height
    return max(1, width * limit // side), max(1, height * limit // side)


def _patches(width: int, height: int, fit: Fit) -> int:
    width, height = _shrunk(width, height, max(width, height), fit.side)
    if _squares(width, height, PATCH) > fit.patches:
        width, height = _within_patches(width, height, fit.patches)
    return min(fit.patches, _squares(width, height, PATCH))


def _within_patches(width: int, height: int, patches: int) -> tuple[int, int]:
    """Scale to the area of so many patches, then until one side is whole patches."""
    scale = sqrt(patches * PATCH**2 / (width * height))
    across, down = width * scale / PATCH, height * scale / PATCH
    scale *= min(max(1, int(across)) / across, max(1, int(down)) / down)
    return max(1, round(width * scale)), max(1, round(height * scale))


LONGEST_MODEL = 300
"""Characters; no model has a longer name, and searching megabytes would take a while."""
WHOLE = "whole"
"""A variant whose estimate includes all that a family adds by itself: its calibration has a ratio alone."""


class Encrypted(Struct, frozen=True):
    wrapping: int
    """Characters that cost nothing."""
    per_token: float

    def tokens(self, characters: int) -> int:
        return max(0, int((characters - self.wrapping) / self.per_token))


class OneByOne(Struct, frozen=True):
    """Tokens around tools, calls and results in a prompt that writes each by itself, as JSON."""

    preamble: int
    must_call: int
    """Replaces `preamble` where the answer has to be a call."""
    call: int
    result: int


PAGES = Pages(216)
"""A page costs about so much as text and as a picture together."""


class CountingRules(Struct, frozen=True):
    """How a family of models counts. Counts are cached by these values, of which there are few."""

    pictures: Tiles | Patches | Area
    encoding: str = "o200k_base"
    reply_prime: int = 3
    """Tokens that open the reply, once a request."""
    tools_alone: int = 3
    """Tokens around the tools where no system message stands before them."""
    gpt_5: bool = False
    """Tools have a preamble, parallel calls are written one by one, an assistant's text names its channel, and nothing
    names the response format."""
    hides_tools: bool = False
    """The model is not shown tools that it may not call (`tool_choice: none`)."""
    shows_schema: bool = True
    """False if the provider enforces the schema of the response format without a word in the prompt."""
    schema_extra: int = 0
    """Tokens around the schema."""
    message: int = 3
    """Tokens around a message, beside its role."""
    declares_apart: bool = False
    """Declarations do not merge with the instructions, and the reply does not name the response format."""
    call_extra: int = 0
    """Tokens that each call costs more."""
    unstored_call_extra: int = 0
    """The same for a call that the provider does not know by an id of its own."""
    required_extra: int = 0
    """Tokens that tools cost more where the answer has to be a call."""
    one_by_one: OneByOne | None = None
    drops_reasoning: bool = False
    """The provider leaves out the reasoning of earlier turns."""
    encrypted: Encrypted = Encrypted(1_000, 6.4)
    files: Pages = PAGES
    variant: str = ""
    """Part of the calibration's key where a model is counted in several ways."""
    picture_scale: float = 1.0
    """Learnt factor of the tokens of pictures."""


GPT_4O = CountingRules(Tiles(85, 170))
GPT_4 = replace(GPT_4O, encoding="cl100k_base")
O_SERIES = CountingRules(Tiles(75, 150), reply_prime=2, tools_alone=4)
GPT_5_TOOLS = 3
"""Tokens around the tools of gpt-5, where they have no preamble."""
GPT_5 = CountingRules(Tiles(70, 140), reply_prime=2, tools_alone=85, gpt_5=True)

SMALL = Fit(1_536, 2_048)
HIGH = Fit(2_500, 2_048)
ORIGINAL = Fit(10_000, 6_000)
UNSCALED = Fit(30_000, 65_535)
"""A larger picture is refused."""
GPT_5_2 = replace(GPT_5, pictures=Patches(120, 2, SMALL, low=True))
GPT_5_4 = replace(GPT_5, pictures=Patches(120, 2, HIGH, ORIGINAL, low=True))
GPT_5_5 = replace(GPT_5, pictures=Patches(120, 4, HIGH, ORIGINAL, low=True, auto_original=True))
GPT_5_6 = replace(GPT_5, pictures=Patches(120, 4, Fit(2_500, 65_535), UNSCALED, low=True, auto_original=True))

CLAUDE = replace(GPT_4O, schema_extra=200, hides_tools=True)
GUIDED = replace(GPT_4O, shows_schema=False)
HIDING = replace(GUIDED, hides_tools=True)

_FAMILIES = tuple(
    (re.compile(pattern), rules)
    for pattern, rules in (
        (r"gpt-4(-|$)|gpt-3\.5|gpt-35", GPT_4),  # not gpt-4o, gpt-4.1, gpt-4.5
        (r"gpt-4o-mini", replace(GPT_4O, pictures=Tiles(2_833, 5_667))),
        (r"gpt-4\.1-mini", replace(GPT_4O, pictures=Patches(162, 2, SMALL))),
        (r"gpt-4\.1-nano", replace(GPT_4O, pictures=Patches(246, 2, SMALL))),
        (r"o4-mini", replace(O_SERIES, pictures=Patches(172, 1, SMALL))),
        (r"o\d", O_SERIES),
        (r"gpt-5(\.1)?(-codex)?-mini", replace(GPT_5, pictures=Patches(120, 1, SMALL))),
        (r"gpt-5(\.1)?-nano", replace(GPT_5, pictures=Patches(150, 1, SMALL))),
        (r"gpt-5(\.1)?(?![.\d])", GPT_5),
        (r"gpt-5\.[23](?!\d)|gpt-5\.4-(mini|nano)", GPT_5_2),
        (r"gpt-5\.4(?!\d)", GPT_5_4),
        (r"gpt-5\.5(?!\d)", GPT_5_5),
        (r"gpt-(5|[6-9]|\d\d)", GPT_5_6),
        (r".*claude", CLAUDE),
        (r".*(deepseek|stral)", HIDING),
        (r".*(llama|qwen|qwq|glm)", GUIDED),
    )
)
_ROUTED = re.compile(r"(^|/)openai$")
"""A router's name for the vendor: it sends gpt-5 item by item, where tools have no preamble."""
_HIDING_HOSTS = re.compile(r"(^|\.)(groq\.com|huggingface\.co|deepseek\.com|mistral\.ai)$")


@lru_cache(maxsize=1_024)
def rules_for(model: str, host: str = "") -> CountingRules:
    """Rules by the name after the last slash, of a fine-tune (`ft:gpt-4o-mini:org::id`) by its base model, and by the
    provider's host."""
    routed, _, name = model.lower().rpartition("/")
    name = name.removeprefix("ft:")
    rules = next((rules for pattern, rules in _FAMILIES if pattern.match(name)), GPT_4O)
    if rules.gpt_5 and _ROUTED.search(routed):
        rules = replace(rules, tools_alone=GPT_5_TOOLS)
    return replace(rules, hides_tools=True) if _HIDING_HOSTS.search(host) else rules
