"""The example chat page: a conversation outgrows a small window, and the page shows what became of it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from lab.simulator import Simulator
from tests.browser.conftest import DESK, PHONE, TABLES, fits_its_width
from tests.e2e import running
from tests.e2e.running import Steno
from tests.e2e.test_background import HeldSummaries

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

FOLDER = Path(__file__).parents[2] / "examples" / "chat-page"
WINDOW = 2_600
"""Full after a few of the page's own long messages."""
KEY = "sk-typed-into-the-page"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name in the library
        """Nothing."""


@contextmanager
def served_folder() -> Iterator[str]:
    """The page's address, with its folder served as `python -m http.server` does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=FOLDER)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def page_address() -> Iterator[str]:
    with served_folder() as address:
        yield address


@pytest.fixture(scope="module")
def provider() -> Simulator:
    return Simulator(window=WINDOW, tables=TABLES)


@pytest.fixture(scope="module")
def steno(provider: Simulator) -> Iterator[Steno]:
    with pytest.MonkeyPatch.context() as patch, provider.serve() as server:
        running.forget_environment(patch)
        compaction = {"trigger": {"tokens": 2_000}, "background": {"enabled": False}}
        models = [{"match": "*", "context_window": WINDOW}]
        started = running.start(server.url, {"models": models, "compaction": compaction})
        yield started
        started.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def chat(chromium: Browser, page_address: str, steno: Steno) -> AsyncIterator[Page]:
    """The page, set to this Steno. A violation of its own policy, or any other error in its console, fails the test."""
    context = await chromium.new_context(viewport=DESK, reduced_motion="reduce")  # type: ignore[arg-type] # its own dictionary
    wrong: list[str] = []
    page = await context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    await page.goto(page_address)
    await page.get_by_text("Settings").click()
    await page.get_by_label("Steno").fill(steno.url)
    await page.get_by_label("API key").fill(KEY)
    await page.get_by_text("Settings").click()
    yield page
    await context.close()
    assert not wrong


async def say(page: Page, text: str, *, long: bool = False) -> None:
    await page.get_by_label("Message").fill(text)
    if long:
        await page.get_by_role("button", name="Add 300 words").click()
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("button", name="Send")).to_be_visible()


async def test_a_compaction_is_seen_while_it_happens_and_after_it(chat: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldSummaries(monkeypatch)
    await say(chat, "Question 1.", long=True)
    await expect(chat.locator("#status")).to_have_text("nothing left out")
    await expect(chat.locator("#figures")).to_contain_text(f"of {WINDOW:,} tokens")
    cards = chat.locator(".compaction")
    for number in range(2, 9):
        await chat.get_by_label("Message").fill(f"Question {number}.")
        await chat.get_by_role("button", name="Add 300 words").click()
        await chat.get_by_role("button", name="Send").click()
        sent = chat.get_by_role("button", name="Send")
        await expect(cards.first.or_(sent)).to_be_visible()
        if await cards.count():
            break
        await expect(sent).to_be_visible()
    await expect(cards.first).to_contain_text("Summarising")
    await expect(chat.locator("#status")).to_have_text("summarising")
    held.let_go()
    await expect(cards.first).to_contain_text("Earlier messages are summarised")
    await expect(chat.get_by_role("button", name="Send")).to_be_visible()
    await expect(chat.locator("#status")).to_have_text("summarised")
    await expect(chat.locator("#figures")).to_contain_text("saved")
    assert "/ui/conversations/chat-" in (await chat.locator("#inspect").get_attribute("href") or "")
    assert await chat.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])") == '[{},{},""]'


async def test_what_went_wrong_is_said_and_the_message_is_not_lost(chat: Page, provider: Simulator) -> None:
    provider.next_chat(status=400, error={"message": "Not today.", "type": "invalid_request_error", "code": "no"})
    await say(chat, "Will this be answered?")
    await expect(chat.get_by_role("alert")).to_have_text("Not today. (no)")
    await expect(chat.get_by_label("Message")).to_have_value("Will this be answered?")
    await say(chat, "And this?")
    await expect(chat.locator(".assistant")).to_have_count(1)
    await chat.get_by_text("Settings").click()
    await chat.get_by_label("Steno").fill("http://127.0.0.1:9")
    await chat.get_by_text("Settings").click()
    await say(chat, "Anybody?")
    await expect(chat.get_by_role("alert").last).to_have_text("Steno cannot be reached at http://127.0.0.1:9.")


async def test_a_failed_summary_is_said_and_the_conversation_goes_on(chat: Page, provider: Simulator) -> None:
    provider.summary_default = provider.summary_default.__class__(status=400)
    try:
        for number in range(1, 13):
            await say(chat, f"Question {number} of another talk.", long=True)
            if await chat.locator(".compaction.failed").count():
                break
    finally:
        provider.summary_default = provider.summary_default.__class__()
    await expect(chat.locator(".compaction.failed")).to_contain_text("summariser_status_400")
    await expect(chat.locator(".assistant").last).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_page_fits_a_phone(chat: Page, theme: Literal["light", "dark"]) -> None:
    await chat.set_viewport_size(PHONE)  # type: ignore[arg-type] # its own dictionary
    await chat.emulate_media(color_scheme=theme)
    await say(chat, "Does it fit?", long=True)
    assert await fits_its_width(chat)
