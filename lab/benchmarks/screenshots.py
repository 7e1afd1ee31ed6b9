"""The inspector's pages as pictures, for the documentation: in both themes, and on a telephone.

Steno serves some conversations before the simulator, of which most are compacted. Needs Chromium.

    python -m lab.benchmarks.screenshots docs/images
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import httpx2
from playwright.async_api import Browser, async_playwright

from app.edge.protocol import protocol_within
from app.main import create_app
from app.runtime.server import serve
from app.settings import load
from lab.simulator import Simulator

SECRET = "a secret for the pictures of the inspector"  # noqa: S105 - of a server on loopback that ends with them
PASSWORD = "a password for the pictures"  # noqa: S105 - likewise
WINDOW = 8_000
TALK = "support-trip-to-lisbon"
TURNS = {TALK: 26, "billing-question": 4, "release-notes": 14, "error-in-checkout": 19, "quarterly-report": 9}
"""Turns by conversation."""
PHONE, DESK = (390, 844), (1_280, 900)
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--hide-scrollbars")
Theme = Literal["light", "dark"]
SHOTS: Sequence[tuple[str, str, tuple[int, int], Theme]] = (
    ("setup", "/", DESK, "light"),
    ("overview", "/ui", DESK, "light"),
    ("overview-dark", "/ui", DESK, "dark"),
    ("overview-phone", "/ui", PHONE, "dark"),
    ("conversations", "/ui/conversations", DESK, "light"),
    ("conversations-phone", "/ui/conversations", PHONE, "light"),
    ("conversation", f"/ui/conversations/{TALK}", DESK, "light"),
    ("conversation-dark", f"/ui/conversations/{TALK}", DESK, "dark"),
    ("conversation-phone", f"/ui/conversations/{TALK}", PHONE, "light"),
)
SAID = (
    "We fly to Lisbon on 14 May with four people, booking LX-4471. Never book a connection under 90 minutes.",
    "The hotel is Casa do Bairro, 212 EUR a night, reference CDB-90817. Please keep invoices in /trips/lisbon/2026.",
    "What would a train to Sintra cost, and may we bring a dog of 9 kg?",
)


def talk(base_url: str, name: str, turns: int) -> None:
    history: list[dict[str, str]] = []
    with httpx2.Client(timeout=60.0) as client:
        for turn in range(turns):
            history.append(
                {"role": "user", "content": f"{SAID[turn % len(SAID)]} ({turn + 1}) " + "We talked about it. " * 60}
            )
            body: dict[str, Any] = {"model": "gpt-4o", "messages": history, "conversation_id": name}
            answer = client.post(f"{base_url}/v1/chat/completions", json=body).raise_for_status().json()
            said = answer["choices"][0]["message"]["content"]
            history.append(
                {"role": "assistant", "content": f"{said} " + "That is noted, with what it depends on. " * 40}
            )


async def shoot(browser: Browser, url: str, folder: Path) -> None:
    for name, path, (width, height), theme in SHOTS:
        context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        page = await context.new_page()
        await page.goto(f"{url}/ui/sign-in")
        await page.locator("#key").fill(PASSWORD)
        await page.get_by_role("button", name="Sign in").click()
        await page.goto(url + path)
        await page.wait_for_load_state("networkidle")
        await page.screenshot(path=folder / f"inspector-{name}.png")
        await context.close()
        print(folder / f"inspector-{name}.png")


async def shoot_all(url: str, folder: Path) -> None:
    command = shutil.which("chromium") or shutil.which("google-chrome")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=command, args=FLAGS)
        await shoot(browser, url, folder)
        await browser.close()


def main() -> None:
    into = Path(sys.argv[1])
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Simulator(window=WINDOW).serve() as provider:
        database = f"sqlite:///{folder}/steno.db"
        settings = load(
            storage={"url": database, "messages": True},
            upstream={"base_url": f"{provider.url}/v1"},
            models=[{"match": "gpt-4o", "context_window": WINDOW}],
            secret=SECRET,
            inspector={"password": PASSWORD},
        )
        app = create_app(settings)
        limits = settings.limits
        server = serve(app, http=protocol_within(limits.receive_seconds, limits.connections), lifespan="on")
        try:
            for name, turns in TURNS.items():
                talk(server.url, name, turns)
            asyncio.run(shoot_all(server.url, into))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
