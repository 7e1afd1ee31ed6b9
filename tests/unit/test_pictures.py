"""Pictures: pixels count, not base64."""

import pytest

from app.core.messages import Media
from app.core.pictures import FILE_TOKENS, Patches, Tiles, media_tokens

TILES = Tiles(85, 170)
PATCHES = Patches(162, extra=2)


def picture(width: int, height: int, detail: str = "") -> Media:
    return Media("image", 5_000_000, detail, width, height)


@pytest.mark.parametrize(
    ("width", "height", "tiles"),
    [
        (1, 1, 1),
        (512, 512, 1),
        (640, 480, 2),
        (1_024, 1_024, 4),  # its short side becomes 768
        (2_048, 4_096, 6),  # fitted to 1024 x 2048, then to 768 x 1536
        (8_192, 4, 4),  # fitted to 2048 x 1
        (1_000_000, 1, 4),
    ],
)
def test_tiles_are_counted_after_scaling_down(width: int, height: int, tiles: int) -> None:
    assert media_tokens(picture(width, height), TILES) == 85 + 170 * tiles
    assert media_tokens(picture(height, width, "high"), TILES) == 85 + 170 * tiles


def test_at_low_detail_only_the_base_is_paid() -> None:
    assert media_tokens(picture(4_000, 4_000, "low"), TILES) == 85


@pytest.mark.parametrize(
    ("width", "height", "patches"),
    [
        (1, 1, 1),
        (640, 480, 300),
        (1_024, 1_024, 1_024),
        (1_800, 2_400, 1_452),  # scaled to 1056 x 1408: 33 x 44
        (100_000, 1, 1_536),  # a line cannot be scaled to less than a row of patches
    ],
)
def test_patches_are_counted_after_scaling_to_at_most_1536(width: int, height: int, patches: int) -> None:
    assert media_tokens(picture(width, height), PATCHES) == patches * 162 // 100 + 2


def test_a_picture_of_unknown_size_is_taken_for_1024_pixels_square() -> None:
    for unknown in (picture(0, 0), picture(640, 0), picture(0, 480)):
        assert media_tokens(unknown, TILES) == 765
        assert media_tokens(unknown, PATCHES) == 1_024 * 162 // 100 + 2


def test_a_recording_costs_ten_tokens_a_second_and_four() -> None:
    assert media_tokens(Media("audio", 9_999_999, seconds=6.96), TILES) == 69 + 4


def test_a_file_and_whatever_is_unknown_cost_a_flat_sum() -> None:
    assert media_tokens(Media("file", 10), TILES) == media_tokens(Media("video", 10), PATCHES) == FILE_TOKENS
