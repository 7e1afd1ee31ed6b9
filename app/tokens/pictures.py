"""Tokens of pictures, recordings and files, by their size and never by their base64."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

from msgspec import Struct

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
    """Size that a picture is scaled down to."""

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
    """Tokens by pixels, up to a bound."""

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
