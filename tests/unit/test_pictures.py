"""Pictures: pixels count, not base64."""

import pytest

from app.conversation.messages import Media
from app.tokens.rules import Fit, Pages, Patches, Tiles, media_tokens

TILES = Tiles(85, 170)
PATCHES = Patches(162, 2, Fit(1_536, 2_048))
LEVELS = Patches(120, 4, Fit(2_500, 2_048), Fit(10_000, 6_000), low=True)


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
    assert media_tokens(picture(width, height, "low"), TILES) == 85


@pytest.mark.parametrize(
    ("width", "height", "patches"),
    [
        (1, 1, 1),
        (640, 480, 300),
        (1_024, 1_024, 1_024),
        (1_800, 2_400, 1_452),  # scaled to 1056 x 1408: 33 x 44
        (3_000, 600, 832),  # its long side becomes 2048
        (100_000, 1, 64),
    ],
)
def test_patches_are_counted_after_scaling_to_at_most_1536(width: int, height: int, patches: int) -> None:
    assert media_tokens(picture(width, height), PATCHES) == patches * 162 // 100 + 2
    assert media_tokens(picture(width, height, "low"), PATCHES) == media_tokens(picture(width, height), PATCHES)


def test_a_line_cannot_be_scaled_to_less_than_a_row_of_patches() -> None:
    assert media_tokens(picture(100_000, 1), Patches(100, 0, Fit(1_536, 200_000))) == 1_536


@pytest.mark.parametrize(
    ("detail", "patches", "auto_original"),
    [
        ("low", 16 * 12, 16 * 12),  # 512 x 384
        ("high", 57 * 43, 57 * 43),  # 1824 x 1368
        ("", 57 * 43, 115 * 86),
        ("auto", 57 * 43, 115 * 86),
        ("original", 115 * 86, 115 * 86),
    ],
)
def test_a_level_of_detail_says_how_far_patches_are_scaled_down(detail: str, patches: int, auto_original: int) -> None:
    for auto, expected in ((False, patches), (True, auto_original)):
        levels = Patches(100, 0, LEVELS.high, LEVELS.original, low=True, auto_original=auto)
        assert media_tokens(picture(8_000, 6_000, detail), levels) == expected


def test_a_small_picture_costs_what_it_covers_at_every_level() -> None:
    for detail in ("", "low", "high", "original"):
        assert media_tokens(picture(60, 30, detail), LEVELS) == 2 * 120 // 100 + 4


def test_a_picture_of_unknown_size_is_taken_for_1024_pixels_square() -> None:
    for unknown in (picture(0, 0), picture(640, 0), picture(0, 480)):
        assert media_tokens(unknown, TILES) == 765
        assert media_tokens(unknown, PATCHES) == 1_024 * 162 // 100 + 2


def test_a_recording_costs_ten_tokens_a_second_and_four() -> None:
    assert media_tokens(Media("audio", 9_999_999, seconds=6.96), TILES) == 69 + 4


def test_a_file_and_whatever_is_unknown_cost_a_flat_sum() -> None:
    assert media_tokens(Media("file", 10), TILES) == media_tokens(Media("video", 10), PATCHES) == 1_000


def test_a_file_costs_what_is_written_in_it_and_the_same_for_each_page() -> None:
    pages = Pages(100, file=5)
    assert media_tokens(Media("file", 10, pages=3, glyphs=380), TILES, files=pages) == 5 + 3 * 100 + 100
    assert media_tokens(Media("file", 10, text="one two"), TILES, files=pages) == 5 + len("one two")
    assert media_tokens(Media("file", 10), TILES, files=pages) == 1_000


def test_a_page_may_cost_by_its_size_up_to_a_bound() -> None:
    pages = Pages(1_570, tokens_per_point=4 / 750)
    for (width, height), page in {(200, 200): 213, (612, 792): 1_570, (0, 0): 1_570}.items():
        file = Media("file", 10, width=width, height=height, pages=100)
        assert media_tokens(file, TILES, files=pages) == 100 * page


def test_only_pictures_are_scaled() -> None:
    assert media_tokens(picture(640, 480), TILES, 2.0) == 2 * 425
    assert media_tokens(picture(640, 480), TILES, 0.1) == 42
    assert media_tokens(Media("file", 10), TILES, 2.0) == 1_000
    assert media_tokens(Media("audio", 1, seconds=1.0), TILES, 2.0) == 14
