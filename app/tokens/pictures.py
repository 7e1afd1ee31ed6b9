"""Pictures, recordings and files: what a part that is no text costs, by its size and never by its base64."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from msgspec import Struct

from app.core.history.messages import Media

UNKNOWN_SIZE = (1024, 1024)
"""Pixels assumed for a picture behind a URL, which is never fetched."""
AUDIO_TOKENS_PER_SECOND = 10
AUDIO_TOKENS = 4
GLYPHS_PER_TOKEN = 3.8
"""Characters a token on a page in English; spaces are often no glyphs."""

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
    """Size that a picture is scaled down to."""

    patches: int
    side: int
    """Pixels of the longer one."""


LOW = Fit(256, 512)


class Patches(Struct, frozen=True):
    """Tokens by squares of 32 pixels, once the picture is scaled down to what its `detail` allows."""

    hundredths: int
    """Hundredths of a token that a patch costs."""
    extra: int
    high: Fit
    original: Fit | None = None
    """Size at the level `original`, if that is a level of its own."""
    low: bool = False
    """Whether `detail: low` makes it smaller."""
    auto_original: bool = False
    """Without a level the picture is left as it is."""

    def tokens(self, width: int, height: int, detail: str) -> int:
        return self.hundredths * _patches(width, height, self._fit(detail)) // 100 + self.extra

    def _fit(self, detail: str) -> Fit:
        if detail == "low" and self.low:
            return LOW
        if self.original and (detail == "original" or (self.auto_original and detail != "high")):
            return self.original
        return self.high


class Area(Struct, frozen=True):
    """Tokens by pixels, once the picture is scaled down to so many tokens."""

    pixels_per_token: float
    most: int

    def tokens(self, width: int, height: int, _detail: str) -> int:
        return min(self.most, round(width * height / self.pixels_per_token))


class Pages(Struct, frozen=True):
    """Cost of files: each page what is written on it, and the same for what it looks like."""

    page: int
    """Tokens of a page beside its text, at most."""
    tokens_per_point: float | None = None
    """Tokens by a page's area, where its size is known; None where all pages cost the same."""
    file: int = 0
    """Tokens around a file."""
    unknown: int = 1_000
    """Tokens of a file of which nothing is known: it is somewhere else, or neither a PDF nor text."""

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
    """Tokens of one part. `scale`: what those of a picture are multiplied with; `count`: tokens of a text."""
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
    """How many squares cover the picture."""
    return -(-width // side) * -(-height // side)


def _shrunk(width: int, height: int, side: int, limit: int) -> tuple[int, int]:
    """The picture in proportion, with `side` brought down to the limit."""
    if side <= limit:
        return width, height
    return max(1, width * limit // side), max(1, height * limit // side)


def _patches(width: int, height: int, fit: Fit) -> int:
    width, height = _shrunk(width, height, max(width, height), fit.side)
    if _squares(width, height, PATCH) > fit.patches:
        width, height = _within_patches(width, height, fit.patches)
    return min(fit.patches, _squares(width, height, PATCH))


def _within_patches(width: int, height: int, patches: int) -> tuple[int, int]:
    """Pixels after scaling: to the area of so many patches, then until one side is whole patches."""
    scale = sqrt(patches * PATCH**2 / (width * height))
    across, down = width * scale / PATCH, height * scale / PATCH
    scale *= min(max(1, int(across)) / across, max(1, int(down)) / down)
    return max(1, round(width * scale)), max(1, round(height * scale))
