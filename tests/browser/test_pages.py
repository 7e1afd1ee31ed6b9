"""What holds for every page: it fits a telephone, in both themes, and everything on it can be reached by keyboard."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.browser.conftest import FORKED, PHONE, TRIP, OpenPage, fits_its_width

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGES = (
    "/",
    "/ui",
    "/ui/conversations",
    f"/ui/conversations/{TRIP}",
    f"/ui/conversations/{quote(FORKED, safe='')}",
    "/ui/sign-in",
    "/ui/nothing-here",
)


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_fits_a_telephone_in_both_themes(path: str, open_page: OpenPage) -> None:
    page = await open_page(path, width=PHONE["width"])
    lightness = "Number(getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/)[0])"
    assert await page.evaluate(lightness) > 200
    assert await fits_its_width(page)
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate(lightness) < 60
    assert await fits_its_width(page)
