"""Pictures, recordings and files: what a part that is no text costs, by its size and never by its base64."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from app.core.messages import Media

UNKNOWN_SIZE = (1024, 1024)
"""Pixels assumed for a picture behind a URL, which is never fetched."""
AUDIO_TOKENS_PER_SECOND = 10
AUDIO_TOKENS = 4
FILE_TOKENS = 1_000
"""How many pages a file has is not known; one of text costs about 200."""

TILE = 512
PATCH = 32
MAX_PATCHES = 1_536


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tokens by squares of 512 pixels, once the picture is fitted into 2048 x 2048 and its short side to 768."""

    base: int
    tile: int

    def tokens(self, width: int, height: int, detail: str) -> int:
        if detail == "low":
            return self.base
        width, height = _shrunk(width, height, max(width, height), 2_048)
        width, height = _shrunk(width, height, min(width, height), 768)
        return self.base + self.tile * _squares(width, height, TILE)


@dataclass(frozen=True, slots=True)
class Patches:
    """Tokens by squares of 32 pixels, at most 1,536 of them: a larger picture is scaled down first."""

    hundredths: int
    """Of a token a patch."""
    extra: int

    def tokens(self, width: int, height: int, detail: str) -> int:  # noqa: ARG002 - patches know no detail
        if _squares(width, height, PATCH) > MAX_PATCHES:
            width, height = _within_patches(width, height)
        return self.hundredths * min(MAX_PATCHES, _squares(width, height, PATCH)) // 100 + self.extra


def media_tokens(media: Media, pictures: Tiles | Patches) -> int:
    """Tokens of one part."""
    match media.kind:
        case "image":
            width, height = (media.width, media.height) if media.width > 0 < media.height else UNKNOWN_SIZE
            return pictures.tokens(width, height, media.detail)
        case "audio":
            return int(media.seconds * AUDIO_TOKENS_PER_SECOND) + AUDIO_TOKENS
        case _:
            return FILE_TOKENS


def _squares(width: int, height: int, side: int) -> int:
    """How many squares cover the picture."""
    return -(-width // side) * -(-height // side)


def _shrunk(width: int, height: int, side: int, limit: int) -> tuple[int, int]:
    """The picture in proportion, with `side` brought down to the limit."""
    if side <= limit:
        return width, height
    return max(1, width * limit // side), max(1, height * limit // side)


def _within_patches(width: int, height: int) -> tuple[int, int]:
    """Pixels after scaling: to the area of 1,536 patches, then until one side is whole patches."""
    scale = sqrt(MAX_PATCHES * PATCH**2 / (width * height))
    across, down = width * scale / PATCH, height * scale / PATCH
    scale *= min(max(1, int(across)) / across, max(1, int(down)) / down)
    return max(1, round(width * scale)), max(1, round(height * scale))
