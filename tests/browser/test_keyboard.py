"""The inspector with the keyboard alone: what of the browser's tests is played on every change."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser.conftest import NAMES, TRIP, OpenPage

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_keyboard_alone_leads_to_a_conversation_and_back(open_page: OpenPage) -> None:
    page = await open_page("/ui")
    await page.keyboard.press("Tab")
    await expect(page.get_by_text("Skip to content")).to_be_focused()
    await page.keyboard.press("/")
    await expect(page.locator("#find")).to_be_focused()
    await page.keyboard.type("trip")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/ui/conversations?q=trip")
    assert await page.locator(NAMES).all_text_contents() == [TRIP]
    await page.keyboard.press("g")
    await page.keyboard.press("c")
    await page.wait_for_url("**/ui/conversations")
    rows = page.locator("[data-list] [data-open]")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(rows.nth(1)).to_be_focused()
    await page.keyboard.press("k")
    await expect(rows.nth(0)).to_be_focused()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/ui/conversations/*")
