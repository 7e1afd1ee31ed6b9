"""The inspector as people use it: with a mouse, on a telephone, in both themes."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import pytest
from playwright.async_api import expect

from tests.browser.axe import findings
from tests.browser.conftest import FORKED, KEY, NAMES, OF_KEY, PHONE, SECRET_WORD, SHORT, TRIP, OpenPage, fits_its_width

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

PAGES = (
    "/",
    "/ui",
    "/ui/conversations",
    f"/ui/conversations/{TRIP}",
    f"/ui/conversations/{quote(FORKED, safe='')}",
    "/ui/sign-in",
    "/ui/nothing-here",
)
LIGHTNESS = "Number(getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/)[0])"


@pytest.mark.parametrize("path", [*PAGES, "/ui/conversations?q=nothing-like-that"])
async def test_axe_finds_nothing_on_a_page(path: str, open_page: OpenPage) -> None:
    page = await open_page(path)
    assert await findings(page) == []


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/tenants", "/ui/nothing-here"])
async def test_axe_finds_nothing_on_a_page_of_an_operator_or_a_stranger(path: str, open_page: OpenPage) -> None:
    page = await open_page(path, visitor="operator" if path == "/ui/tenants" else "stranger")
    assert await findings(page) == []


@pytest.mark.parametrize("path", PAGES)
async def test_a_page_fits_a_telephone_in_both_themes(path: str, open_page: OpenPage) -> None:
    page = await open_page(path, width=PHONE["width"])
    assert await page.evaluate(LIGHTNESS) > 200
    assert await fits_its_width(page)
    await page.emulate_media(color_scheme="dark")
    assert await page.evaluate(LIGHTNESS) < 60
    assert await fits_its_width(page)
    for landmark in ("main", "h1"):
        assert await page.locator(landmark).count() == 1


async def test_the_theme_is_switched_and_stays(open_page: OpenPage) -> None:
    page = await open_page("/ui", theme="light")
    await page.locator("details.menu > summary").click()
    switch = page.get_by_role("button", name="Theme")
    await switch.click()
    await switch.click()
    await expect(switch).to_have_text("Theme: dark")
    await page.goto("/ui/conversations")
    assert await page.evaluate(LIGHTNESS) < 60


async def test_the_list_is_searched_and_filtered(open_page: OpenPage) -> None:
    page = await open_page("/ui/conversations")
    rows = page.locator(NAMES)
    assert set(await rows.all_text_contents()) == {TRIP, SHORT, FORKED}
    await page.get_by_label("Status").select_option("summarized")
    await page.wait_for_url("**status=summarized**")
    assert set(await rows.all_text_contents()) == {TRIP, FORKED}
    await page.get_by_role("link", name="Clear").click()
    await page.wait_for_url("**/ui/conversations")
    assert SHORT in await rows.all_text_contents()
    await page.goto("/ui/conversations?q=nothing-like-that")
    await expect(page.get_by_text("No conversation matches.")).to_be_visible()


async def test_a_conversation_is_titled_by_its_first_question(open_page: OpenPage) -> None:
    page = await open_page("/ui/conversations")
    row = page.locator("[data-list] tr", has=page.get_by_text(TRIP))
    title = await row.locator("[data-open]").inner_text()
    assert title.startswith("Question 1, order ORD-0001.")
    await row.get_by_role("link", name=title).click()
    await expect(page.locator("h1")).to_have_text(title)
    await expect(page.locator(".id")).to_have_text(TRIP)


async def test_words_of_a_summary_find_its_conversation(open_page: OpenPage) -> None:
    page = await open_page("/ui/sign-in")
    await page.get_by_label("API key").fill(KEY)
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/ui")
    await page.locator("#find").fill(SECRET_WORD[:5])
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/ui/conversations?q=*")
    assert await page.locator(NAMES).all_text_contents() == [OF_KEY]
    await page.locator("details.menu > summary").click()
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/ui/sign-in")


async def test_the_operators_password_shows_one_tenant_after_the_other(open_page: OpenPage) -> None:
    page = await open_page("/ui/tenants", visitor="operator")
    await page.get_by_role("button", name="Show anonymous").click()
    await page.wait_for_url("**/ui")
    await page.goto("/ui/conversations")
    await expect(page.get_by_text(TRIP)).to_be_visible()
    assert await page.get_by_text(OF_KEY).count() == 0


async def test_a_word_of_stenos_own_is_explained_where_the_focus_is(open_page: OpenPage) -> None:
    page = await open_page("/ui", scripts=False)
    meaning = page.get_by_text("Steno counts tokens itself.")
    await expect(meaning).to_be_hidden()
    await page.get_by_role("button", name="Calibration").focus()
    await expect(meaning).to_be_visible()


async def test_the_overview_says_what_was_saved(open_page: OpenPage) -> None:
    page = await open_page("/ui")
    saved = page.locator(".figures div", has_text="Tokens saved")
    await expect(saved).to_contain_text("% of")
    assert await page.locator("svg.bars rect.saved").count() in {1, 2}, "all within an hour, or beside its end"
    await page.get_by_text("Every hour as a table").click()
    assert await page.locator("details table tbody tr").count() in {1, 2}
    await page.get_by_role("link", name="30 days").click()
    await page.wait_for_url("**days=30")
    await page.get_by_role("link", name="gpt-4o").click()
    await page.wait_for_url("**/ui/conversations?model=gpt-4o")


async def test_the_setup_page_has_base_urls_to_copy(open_page: OpenPage) -> None:
    page = await open_page("/")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("button", name="Copy").first.click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    at = urlsplit(page.url)
    assert await page.evaluate("navigator.clipboard.readText()") == f"{at.scheme}://{at.netloc}/v1"
    await expect(page.get_by_role("heading", name="Upstreams")).to_be_visible()


async def test_everything_works_without_scripts_and_nothing_else_is_loaded(open_page: OpenPage) -> None:
    page = await open_page("/ui/conversations", scripts=False)
    await page.get_by_label("Status").select_option("full")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**status=full**")
    assert await page.locator(NAMES).all_text_contents() == [SHORT]
