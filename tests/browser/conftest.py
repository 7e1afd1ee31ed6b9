"""Steno with a few conversations in it, and one Chromium that looks at its pages, both shared by all tests.

Every page is watched: an error in its console, such as a violation of its content security policy, or a request to
another host fails the test that opened it.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Request, async_playwright, expect

from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.histories import chat, turns
from tests.e2e.running import WINDOW, Steno

COMMANDS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1280, "height": 860}
SECRET = "a secret for the end-to-end tests"
PASSWORD = "the operator's password"
TABLES = Path(__file__).parents[2] / ".tables"
TRIP, SHORT, FORKED = "support-trip", "short-hello", "team/ops #7 <b>"
"""Conversations of `anonymous`; the last one's name is an awkward one."""
KEY = "sk-somebody-with-a-key"
OF_KEY = "with-a-key"
"""The conversation of whoever holds it."""
NAMES = "[data-list] .named code"
"""Where a page lists the names of conversations."""
SECRET_WORD = "zirconium"
"""Stands in its summaries alone."""

WAIT_MS = 60_000
"""For what has to appear. Long: machines that run tests are busy."""

OpenPage = Callable[..., Awaitable[Page]]
"""`await open_page(path, width=..., theme=..., visitor=...)`: a page in a browser that knows no cookie yet."""
Visitor = Literal["anonymous", "operator", "stranger"]


@pytest.fixture(scope="session")
def served() -> Iterator[Steno]:
    """Steno before the simulator, which keeps messages, with conversations that were compacted and one that was not."""
    with pytest.MonkeyPatch.context() as patch:
        running.forget_environment(patch)
        with Simulator(window=WINDOW, tables=TABLES).serve() as provider:
            sections = {"secret": SECRET, "storage": {"messages": True}, "inspector": {"password": PASSWORD}}
            steno = running.start(provider.url, sections)
            try:
                talk(steno)
                yield steno
            finally:
                steno.stop()


def talk(steno: Steno) -> None:
    """What the pages are to show."""
    for number in range(2, 17, 2):
        say(steno, TRIP, turns(number, 400))
    say(steno, SHORT, turns(1, 20))
    for number in (8, 9):
        say(steno, FORKED, turns(number, 400))
    for number in (7, 8):
        history = turns(number, 400)
        for message in history:
            message["content"] = f"{SECRET_WORD} {message['content']}"
        say(steno, OF_KEY, history, KEY)


def say(steno: Steno, conversation: str, history: list[Any], key: str | None = None) -> None:
    """A chat request, without a key where none is given."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    body = chat(history, conversation_id=conversation)
    answer = httpx2.post(f"{steno.base_url}/chat/completions", content=body, headers=headers, timeout=30.0)
    answer.raise_for_status()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """Started once."""
    command = next(filter(None, map(shutil.which, COMMANDS)), None)
    if command is None:
        pytest.skip(f"none of {', '.join(COMMANDS)} is installed")
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=command, args=FLAGS)
        yield browser
        await browser.close()


@asynccontextmanager
async def opening(chromium: Browser) -> AsyncIterator[Callable[..., Awaitable[Page]]]:
    """Opens pages, each in a browser of its own, and watches them."""
    wrong: list[str] = []
    async with AsyncExitStack() as opened:

        async def open_one(
            url: str,
            path: str,
            *,
            width: int = DESK["width"],
            theme: Literal["light", "dark"] = "light",
            scripts: bool = True,
            headers: Mapping[str, str] | None = None,
        ) -> Page:
            size = {"width": width, "height": PHONE["height"] if width <= PHONE["width"] else DESK["height"]}
            context = await chromium.new_context(
                viewport=size,  # type: ignore[arg-type] # its own dictionary type
                color_scheme=theme,
                base_url=url,
                reduced_motion="reduce",
                java_script_enabled=scripts,
                extra_http_headers=dict(headers or {}),
            )
            opened.push_async_callback(context.close)
            context.set_default_timeout(WAIT_MS)
            page = await context.new_page()
            watch(page, url, wrong)
            await page.goto(path)
            return page

        yield open_one
    assert not wrong


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(chromium: Browser, served: Steno) -> AsyncIterator[OpenPage]:
    """Opens pages of the shared Steno."""
    async with opening(chromium) as open_one:

        async def open_for(path: str, *, visitor: Visitor = "anonymous", **options: Any) -> Page:
            if visitor != "operator":
                headers = {"x-forwarded-for": "203.0.113.7"} if visitor == "stranger" else None
                return await open_one(served.url, path, headers=headers, **options)
            page = await open_one(served.url, "/ui/sign-in", **options)
            await page.get_by_label("API key or operator's password").fill(PASSWORD)
            await page.get_by_role("button", name="Sign in").click()
            await page.wait_for_url("**/ui")
            await page.goto(path)
            return page

        yield open_for


def watch(page: Page, own: str, wrong: list[str]) -> None:
    """Notes what must not happen on any page."""

    def check(request: Request) -> None:
        if urlsplit(request.url).scheme != "data" and not request.url.startswith(f"{own}/"):
            wrong.append(f"{page.url} asked for {request.url}")

    page.on("request", check)
    page.on("pageerror", lambda error: wrong.append(f"{page.url}: {error}"))
    page.on(
        "console", lambda said: wrong.append(f"{page.url}: {said.text}") if is_wrong(said.type, said.text) else None
    )


def is_wrong(kind: str, text: str) -> bool:
    """An error, unless it only says that a page was refused, which its test is about."""
    return kind == "error" and not text.startswith("Failed to load resource: the server responded with a status of 4")


async def fits_its_width(page: Page) -> bool:
    """Whether the page itself never scrolls sideways."""
    return bool(await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))
