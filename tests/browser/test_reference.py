"""`/docs`: the reference, in a browser and by its commands."""

from __future__ import annotations

from typing import Literal

import pytest

from tests.browser.axe import findings_at
from tests.browser.conftest import DESK, PHONE, OpenPage, fits_its_width

pytestmark = [pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.parametrize(("width", "theme"), [(DESK["width"], "light"), (PHONE["width"], "dark")])
async def test_the_reference_fits_every_screen_and_axe_finds_nothing(
    open_page: OpenPage, width: int, theme: Literal["light", "dark"]
) -> None:
    page = await open_page("/docs", width=width, theme=theme)
    assert await page.title() == "Reference · Steno"
    assert await fits_its_width(page)
    assert await page.locator("article.operation").count() > 40
    assert await findings_at(page, width) == []


async def test_a_route_in_the_contents_leads_to_it_and_its_schema_from_there(open_page: OpenPage) -> None:
    page = await open_page("/docs")
    await page.locator(".contents .wide").get_by_role("link", name="List Summaries").click()
    assert page.url.endswith("/docs#list_summaries")
    article = page.locator("#list_summaries")
    assert await article.locator("pre").first.is_visible()
    await article.get_by_role("link", name="Listing_SummaryOut_").click()
    await page.locator("#schema-Listing_SummaryOut_").get_by_role("link", name="SummaryOut", exact=True).click()
    assert page.url.endswith("#schema-SummaryOut")
    assert await page.locator("#schema-SummaryOut").get_by_text("summarized_through_turn").is_visible()
