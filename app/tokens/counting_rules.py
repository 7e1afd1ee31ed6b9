"""Counting rules: the token costs of each model family, by model name, and of pictures, recordings and files.

The rules are derived from prompts whose size the providers reported. Unknown families count like gpt-4o; calibration
corrects the difference. Media cost tokens by their size, never by their base64.
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
"""Width and height assumed for a picture at a URL, which Steno never fetches."""
AUDIO_TOKENS_PER_SECOND = 10
AUDIO_TOKENS = 4
GLYPHS_PER_TOKEN = 3.8
"""Glyphs in a PDF for each token of English text. Spaces often have no glyph."""
TILE = 512
PATCH = 32


class Tiles(Struct, frozen=True):
    """Cost by 512-pixel squares. The provider shrinks a picture to 2048 x 2048, then its short side to 768 pixels."""

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
    """Maximum pixels of the longer side."""


LOW = Fit(256, 512)


class Patches(Struct, frozen=True):
    """Picture's cost by 32-pixel squares. The provider first shrinks the picture to the `Fit` of its `detail`."""

    hundredths: int
    """Cost of a patch in hundredths of a token."""
    extra: int
    high: Fit
    original: Fit | None = None
    """Fit of `detail: original`, if the model supports it."""
    low: bool = False
    """Whether the model supports `detail: low`."""
    auto_original: bool = False
    """Whether `original` is the default detail."""

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


def claude_pictures(version: tuple[int, int], ratio: float) -> Area:
    """Return the cost of pictures in the Messages API. `ratio`: Claude's tokens for each token of the estimate."""
    return Area(750 * ratio, round((4_784 if version >= (4, 7) else 1_600) / ratio))


class Pages(Struct, frozen=True):
    """Cost of files: the text and the picture of each page."""

    page: int
    """Maximum tokens of a page's picture."""
    tokens_per_point: float | None = None
    """Tokens for each square point of a page's area; None if all pages cost the same."""
    file: int = 0
    """Fixed tokens of a file, in addition to its pages or text."""
    unknown: int = 1_000
    """Tokens of a file at a URL, or of a file that is neither a PDF nor text."""

    def tokens(self, media: Media) -> int:
        page = self.page
        if self.tokens_per_point is not None and media.width > 0 < media.height:
            page = min(page, round(media.width * media.height * self.tokens_per_point))
        return self.file + media.pages * page + int(media.glyphs / GLYPHS_PER_TOKEN)


def media_tokens(media: Media, rules: CountingRules, count: Callable[[str], int]) -> int:
    """Return the tokens of one media part. `count` counts the text of a file."""
    match media.kind:
        case "image":
            width, height = (media.width, media.height) if media.width > 0 < media.height else UNKNOWN_SIZE
            return round(rules.pictures.tokens(width, height, media.detail) * rules.picture_scale)
        case "audio":
            return int(media.seconds * AUDIO_TOKENS_PER_SECOND) + AUDIO_TOKENS
        case _ if media.text:
            return rules.files.file + count(media.text)
        case _:
            return rules.files.tokens(media) if media.pages else rules.files.unknown


def _squares(width: int, height: int, side: int) -> int:
    return -(-width // side) * -(-height // side)


def _shrunk(width: int, height: int, side: int, limit: int) -> tuple[int, int]:
    """Return width and height. If `side` exceeds `limit`, scale both down by the same factor: `limit / side`."""
    if side <= limit:
        return width, height
    return max(1, width * limit // side), max(1, height * limit // side)


def _patches(width: int, height: int, fit: Fit) -> int:
    width, height = _shrunk(width, height, max(width, height), fit.side)
    if _squares(width, height, PATCH) > fit.patches:
        # Scale to the area of all patches, then further until one side is a whole number of patches.
        scale = sqrt(fit.patches * PATCH**2 / (width * height))
        across, down = width * scale / PATCH, height * scale / PATCH
        scale *= min(max(1, int(across)) / across, max(1, int(down)) / down)
        width, height = max(1, round(width * scale)), max(1, round(height * scale))
    return min(fit.patches, _squares(width, height, PATCH))


LONGEST_MODEL = 300
"""Maximum characters of a model's name that Steno reads."""
WHOLE = "whole"
"""Formula variant that includes the fixed tokens of each request. Its first calibration has a ratio, but no offset."""


class Encrypted(Struct, frozen=True):
    wrapping: int
    """Number of characters that cost no tokens."""
    per_token: float

    def tokens(self, characters: int) -> int:
        return max(0, int((characters - self.wrapping) / self.per_token))


class OneByOne(Struct, frozen=True):
    """Tokens in addition to the texts: once for all tools, once for each call, and once for each result."""

    preamble: int
    must_call: int
    """Tokens in place of `preamble` if the answer must be a call."""
    call: int
    result: int


PAGES = Pages(216)
"""Average tokens of a page without its text. The text costs tokens by the number of its glyphs."""


class CountingRules(Struct, frozen=True):
    """Token costs of a model family. Models with equal rules share cached counts."""

    pictures: Tiles | Patches | Area
    encoding: str = "o200k_base"
    reply_prime: int = 3
    """Tokens that begin the reply, once for each request."""
    tools_alone: int = 3
    """Fixed tokens of the tools if no system message precedes them."""
    gpt_5: bool = False
    """Whether prompts have gpt-5's form: a preamble before tools, separate parallel calls, a channel for each assistant
    text, and no name of the response format in replies."""
    hides_tools: bool = False
    """Whether the prompt contains no tools if `tool_choice` is `none`."""
    shows_schema: bool = True
    """Whether the prompt contains the response schema. Some providers enforce a schema that the model does not see."""
    schema_extra: int = 0
    """Fixed tokens of the response schema, in addition to its text."""
    message: int = 3
    """Fixed tokens of a message, in addition to its role and its text."""
    declares_apart: bool = False
    """Whether declarations are separate from the instructions, and replies do not name the response format."""
    call_extra: int = 0
    """Additional tokens of each call with an item id from the provider."""
    unstored_call_extra: int = 0
    """Additional tokens of each call without an item id from the provider, in place of `call_extra`."""
    required_extra: int = 0
    """Additional tokens of the tools if the request requires a call."""
    one_by_one: OneByOne | None = None
    drops_reasoning: bool = False
    """Whether the provider drops the reasoning of earlier turns."""
    encrypted: Encrypted = Encrypted(1_000, 6.4)
    files: Pages = PAGES
    variant: str = ""
    """Part of the calibration's key. It distinguishes formulas that count the same model."""
    picture_scale: float = 1.0
    """Learnt factor for picture tokens."""


GPT_4O = CountingRules(Tiles(85, 170))
GPT_4 = replace(GPT_4O, encoding="cl100k_base")
O_SERIES = CountingRules(Tiles(75, 150), reply_prime=2, tools_alone=4)
GPT_5_TOOLS = 3
"""Fixed tokens of gpt-5's tools if they have no preamble."""
GPT_5 = CountingRules(Tiles(70, 140), reply_prime=2, tools_alone=85, gpt_5=True)

SMALL = Fit(1_536, 2_048)
HIGH = Fit(2_500, 2_048)
ORIGINAL = Fit(10_000, 6_000)
UNSCALED = Fit(30_000, 65_535)
"""Limits as large as the largest picture that providers accept, so that no picture shrinks."""
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
"""Prefix of OpenAI's models at a gateway. Gateways call gpt-5 by the Responses API, where tools have no preamble."""
_HIDING_HOSTS = re.compile(r"(^|\.)(groq\.com|huggingface\.co|deepseek\.com|mistral\.ai)$")


@lru_cache(maxsize=1_024)
def rules_for(model: str, host: str = "") -> CountingRules:
    """Return the rules by the provider's host and the model's name after the last slash. A fine-tune such as
    `ft:gpt-4o-mini:org::id` has the rules of its base model."""
    routed, _, name = model.lower().rpartition("/")
    name = name.removeprefix("ft:")
    rules = next((rules for pattern, rules in _FAMILIES if pattern.match(name)), GPT_4O)
    if rules.gpt_5 and _ROUTED.search(routed):
        rules = replace(rules, tools_alone=GPT_5_TOOLS)
    return replace(rules, hides_tools=True) if _HIDING_HOSTS.search(host) else rules
