"""The scripts of docs/chat-interfaces.md, run in order beside the example page, print what the page says."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from playwright.async_api import Browser

from lab.simulator import Simulator
from tests.browser.conftest import TABLES
from tests.browser.test_chat_page import served_folder
from tests.e2e import running
from tests.e2e.histories import turns
from tests.e2e.running import WINDOW, Steno
from tests.unit.test_docs import ADDRESS, blocks

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

DOCS = Path(__file__).parents[2] / "docs"
IMPORT = 'import { eventsOf } from "./steno.js";'
AS_EXPRESSION = 'const { eventsOf } = await import("./steno.js");'
"""The same where a script is no module."""


EXAMPLES = blocks((DOCS / "chat-interfaces.md").read_text())
[SETTINGS] = (block.text for block in EXAMPLES if block.language == "yaml")
PAGE = "http://127.0.0.1:8090"
"""The example page's origin where it is served as the documented command does."""


@pytest.fixture
def page_address() -> Iterator[str]:
    with served_folder() as address:
        yield address


@pytest.fixture
def steno(page_address: str) -> Iterator[Steno]:
    """With the documented setting, before a provider that knows every model."""
    with (
        pytest.MonkeyPatch.context() as patch,
        Simulator(window=WINDOW, models="any", tables=TABLES).serve() as provider,
    ):
        running.forget_environment(patch)
        started = running.start(provider.url, yaml.safe_load(SETTINGS.replace(PAGE, page_address.rstrip("/"))))
        yield started
        started.stop()


async def test_scripts_run_in_order_and_print_what_the_page_says(
    chromium: Browser, page_address: str, steno: Steno
) -> None:
    scripts = [(block, after) for block, after in pairwise(EXAMPLES) if block.language == "javascript"]
    assert len(scripts) == 2
    page = await (await chromium.new_context()).new_page()
    printed: list[str] = []
    page.on("console", lambda said: printed.append(said.text))
    await page.goto(page_address)
    for number, (script, expected) in enumerate(scripts, 1):
        printed.clear()
        text = script.text.replace(IMPORT, AS_EXPRESSION).replace(ADDRESS, steno.url)
        await page.evaluate(f"async (messages) => {{ {text} }}", turns(15, first=500 * number))
        assert printed == expected.text.splitlines(), script.heading
    await page.context.close()
