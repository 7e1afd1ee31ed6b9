"""The page of one conversation, in a browser: what it shows, and each of its actions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from lab.simulator import Simulator
from tests.browser.axe import findings
from tests.browser.conftest import PHONE, TABLES, fits_its_width, opening
from tests.e2e import running
from tests.e2e.commands import until
from tests.e2e.histories import used
from tests.e2e.running import WINDOW, Steno

pytestmark = [pytest.mark.asyncio(loop_scope="session")]

SHOP = "shop/7 <i>"
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)> \u202eOrder"
KEY = "sk-one-request-only"
OTHERS = "of-another-key"
PLACES = {"chat_completions": SHOP, "messages": "claude-talk", "responses": "codex-talk"}
"""A conversation in each format."""
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "Looks an order up.", "parameters": {"type": "object"}},
}


@dataclass(frozen=True, slots=True)
class Shop:
    """One provider, and before it a Steno that keeps messages and one that does not."""

    simulator: Simulator
    keeping: Steno
    forgetting: Steno

    def path(self, name: str = SHOP) -> str:
        return f"/ui/conversations/{quote(name, safe='')}"


OpenAt = Callable[..., Awaitable[Page]]
"""`await open_at(steno, path, width=..., theme=..., scripts=...)`."""


@pytest.fixture(scope="session")
def shop() -> Iterator[Shop]:
    with pytest.MonkeyPatch.context() as patch:
        running.forget_environment(patch)
        simulator = Simulator(models="any", window=WINDOW, tables=TABLES)
        with simulator.serve() as provider:
            waits = {"compaction": {"background": {"enabled": False}}}  # Each request gets the summary that is due.
            keeping = running.start(provider.url, {"storage": {"messages": True}, **waits})
            forgetting = running.start(provider.url, waits)
            try:
                for steno in (keeping, forgetting):
                    for number in range(2, 19, 2):
                        ask(steno, talk(number))
                ask(keeping, talk(1), name=OTHERS, key="sk-other")
                for number in (4, 14):
                    ask_messages(keeping, number)
                    ask_responses(keeping, number)
                yield Shop(simulator, keeping, forgetting)
            finally:
                keeping.stop()
                forgetting.stop()


def words(beginning: str, number: int = 60) -> str:
    return f"{beginning} " + "the clerk wrote down what was agreed about the parcel " * (number // 10)


def talk(number: int) -> list[Any]:
    """So many turns and a question; every third turn calls a tool whose result is long."""
    said: list[Any] = [{"role": "system", "content": "You are the clerk. Answer in one sentence."}]
    for turn in range(number):
        said.append({"role": "user", "content": words(f"{HOSTILE} {turn}: where is ORD-{turn:04d}?", 180)})
        if turn % 3 == 0:
            said += used(f"call_{turn}", words("a row of the table", 700), "look_up")
        said.append({"role": "assistant", "content": words(f"ORD-{turn:04d} is on its way.", 120)})
    return [*said, {"role": "user", "content": f"And ORD-{number:04d}?"}]


def ask(steno: Steno, history: list[Any], name: str = SHOP, key: str | None = None) -> None:
    # Histories that begin alike share their summaries: each conversation begins in its own way.
    system, first, *others = history
    messages = [system, {**first, "content": f"{name}: {first['content']}"}, *others]
    body = {"model": "gpt-4o", "messages": messages, "conversation_id": name, "tools": [TOOL]}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    httpx2.post(f"{steno.base_url}/chat/completions", json=body, headers=headers, timeout=30.0).raise_for_status()


def plain(number: int) -> list[Any]:
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": words(f"{place}:", 300)} for place in range(2 * number + 1)]


def ask_chat(steno: Steno, number: int, name: str) -> None:
    ask(steno, talk(number), name=name)


def ask_messages(steno: Steno, number: int, name: str = PLACES["messages"]) -> None:
    body = {"model": "claude-x", "max_tokens": 100, "system": "Be brief.", "messages": plain(number)}
    headers = {"x-context-conversation-id": name}
    httpx2.post(f"{steno.base_url}/messages", json=body, headers=headers, timeout=30.0).raise_for_status()


def ask_responses(steno: Steno, number: int, name: str = PLACES["responses"]) -> None:
    body = {"model": "gpt-4o", "instructions": "Be brief.", "input": plain(number), "store": False}
    headers = {"x-context-conversation-id": name}
    httpx2.post(f"{steno.base_url}/responses", json=body, headers=headers, timeout=30.0).raise_for_status()


@pytest_asyncio.fixture(loop_scope="session")
async def open_at(chromium: Browser) -> AsyncIterator[OpenAt]:
    async with opening(chromium) as open_one:
        yield lambda steno, path, **options: open_one(steno.url, path, **options)


def rest(steno: Steno, path: str, name: str = SHOP, key: str | None = None) -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"{steno.url}/context/conversations/{quote(name, safe='')}{path}"
    return httpx2.get(url, headers=headers).raise_for_status().json()


# What it shows


@pytest.mark.parametrize(("width", "theme"), [(PHONE["width"], "light"), (PHONE["width"], "dark"), (1280, "dark")])
async def test_every_part_of_the_page_is_there_and_fits(shop: Shop, open_at: OpenAt, width: int, theme: str) -> None:
    page = await open_at(shop.keeping, shop.path(), width=width, theme=theme)
    for name in ("Tokens by request", "What fills the window", "Summaries", "Messages", "Actions"):
        await expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    assert await page.locator(".token-chart:visible").count() == 1
    assert await page.locator(".fill rect").count() == 200
    assert await fits_its_width(page)
    for more in ("/payload", "/delete"):
        await page.goto(f"{shop.path()}{more}")
        assert await fits_its_width(page)


async def test_the_details_of_a_request_are_shown_where_the_pointer_is(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.keeping, shop.path())
    column = page.locator(".token-chart .column").nth(4)
    await expect(column.locator(".tip")).to_be_hidden()
    await column.focus()
    await page.mouse.move(0, 0)
    box = await column.locator(".hit").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    await expect(column.locator(".tip")).to_be_visible()
    requests = rest(shop.keeping, "/usage?limit=100")["totals"]["requests"]
    await page.get_by_text("The numbers, request by request").click()
    assert await page.locator(".numbers tbody tr").count() == requests == 9


async def test_texts_of_a_conversation_are_shown_and_never_run(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.keeping, f"{shop.path()}?at=1")
    await expect(page.locator("#messages").get_by_text("<script>document.title").first).to_be_visible()
    assert await page.title() == f"{await page.locator('h1').inner_text()} · Steno"
    await expect(page.locator(".id")).to_have_text(SHOP)
    assert await page.locator("#messages img, #messages script, h1 i").count() == 0


@pytest.mark.parametrize("name", PLACES.values(), ids=PLACES)
async def test_a_conversation_of_each_format_is_shown_as_it_went(shop: Shop, open_at: OpenAt, name: str) -> None:
    page = await open_at(shop.keeping, f"{shop.path(name)}/payload")
    kinds = [text.split("\n")[0] for text in await page.locator(".entry strong").all_inner_texts()]
    assert kinds[0] == "instructions"
    assert "summary" in kinds
    assert kinds[-1] == "verbatim"
    covered = rest(shop.keeping, "/coverage", name)["parts"]
    verbatim = sum(part["last_index"] - part["first_index"] + 1 for part in covered if part["kind"] == "verbatim")
    assert kinds.count("verbatim") == verbatim
    first = page.locator(".entry.f-summarized").first
    await first.locator("summary").click()
    await expect(first.locator(".whole")).to_contain_text("[Notes on messages 1 to")


async def test_another_callers_conversation_is_not_there(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.keeping, shop.path(OTHERS))
    await expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    for more in ("/payload", "/handoff.md", "/status", "/delete"):
        assert httpx2.get(f"{shop.keeping.url}{shop.path(OTHERS)}{more}").status_code == 404
    assert rest(shop.keeping, "", OTHERS, key="sk-other")["id"] == OTHERS


async def test_without_stored_messages_the_shape_is_shown_and_what_to_switch_on(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.forgetting, shop.path())
    await expect(page.get_by_text("as plain text, until their conversation is deleted")).to_be_visible()
    stretches = page.locator("#messages .row")
    assert await stretches.count() >= 2
    assert "clerk wrote" not in await page.locator("#messages").inner_text()


async def test_a_summary_stands_beside_the_messages_that_it_was_made_from(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.keeping, shop.path())
    await page.locator("#summaries .chunk-head a").first.click()
    chunk = rest(shop.keeping, f"/summaries/{page.url.rsplit('/', 1)[1]}")
    assert chunk["text"] in await page.locator(".beside .whole").first.inner_text()
    assert await page.locator(".sources > li").count() == chunk["last_index"] - chunk["first_index"] + 1
    assert (await page.locator(".values li").all_inner_texts()) == chunk["values"]
    words = await page.locator(".user-words li").first.inner_text()
    assert words == "turn {turn}: {text}".format_map(chunk["user_words"][0])


@pytest.mark.parametrize("more", ["", "/payload", "/delete"])
async def test_axe_finds_nothing_on_the_pages_of_a_conversation(shop: Shop, open_at: OpenAt, more: str) -> None:
    for steno in (shop.keeping, shop.forgetting):
        page = await open_at(steno, shop.path() + more)
        for part in await page.locator("main details:visible").all():
            await part.evaluate("part => { part.open = true; }")
        assert await findings(page) == []


async def test_axe_finds_nothing_on_the_page_of_a_summary(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.keeping, shop.path())
    await page.locator("#summaries .chunk-head a").first.click()
    assert await findings(page) == []
    await page.get_by_text("Edit the text").click()
    assert await findings(page) == []


async def test_a_payload_of_many_messages_is_shown_page_by_page(shop: Shop, open_at: OpenAt) -> None:
    name = "many short ones"
    said = [{"role": ("user", "assistant")[place % 2], "content": f"Word {place}."} for place in range(121)]
    ask(shop.keeping, [{"role": "system", "content": "Be brief."}, *said], name=name)
    page = await open_at(shop.keeping, f"{shop.path(name)}/payload")
    entries = page.locator(".entry")
    assert await entries.count() == 50
    await page.get_by_role("link", name="Last").click()
    await expect(page.get_by_text("101 to 123 of 123")).to_be_visible()
    await expect(entries.last).to_contain_text("Word 120.")
    await page.get_by_role("link", name="Earlier").click()
    await expect(page.get_by_text("51 to 100 of 123")).to_be_visible()


async def test_the_plot_names_its_requests(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.keeping, shop.path())
    await expect(page.locator(".range")).to_have_text("Requests 1 to 9 of 9.")


# Actions


async def test_a_message_is_pinned_and_unpinned_in_the_timeline(shop: Shop, open_at: OpenAt) -> None:
    page = await open_at(shop.keeping, f"{shop.path()}?at=3", scripts=False)
    await page.get_by_role("button", name="Pin message 3", exact=True).click()
    await expect(page.get_by_text("The message is pinned")).to_be_visible()
    assert [pin["index"] for pin in rest(shop.keeping, "/pins")["data"]] == [2]
    await page.get_by_role("button", name="Unpin message 3", exact=True).click()
    await expect(page.get_by_text("The message is not pinned any more")).to_be_visible()
    assert rest(shop.keeping, "/pins")["data"] == []


async def test_a_form_of_another_session_changes_nothing(shop: Shop) -> None:
    url = f"{shop.keeping.url}{shop.path()}"
    for path, fields in (("/pins/2", {"pinned": "yes"}), ("/delete", {}), ("/compact", {})):
        answer = httpx2.post(url + path, data={"form_token": "forged", **fields})
        assert answer.status_code == 403
    assert rest(shop.keeping, "/pins")["data"] == []
    assert rest(shop.keeping, "")["id"] == SHOP


@pytest.mark.parametrize("format_", PLACES)
async def test_a_conversation_is_compacted_on_demand_with_a_key_for_that_once(
    shop: Shop, open_at: OpenAt, format_: str
) -> None:
    name = f"asked {format_}"
    {"chat_completions": ask_chat, "messages": ask_messages, "responses": ask_responses}[format_](shop.keeping, 3, name)
    made = len(shop.simulator.summaries)
    page = await open_at(shop.keeping, shop.path(name))
    await page.get_by_label("Focus", exact=True).fill("order numbers")
    await page.get_by_label("Key for the provider").fill(KEY)
    await page.get_by_role("button", name="Summarise older turns now").click()
    await expect(page.get_by_text("The summaries are stored")).to_be_visible()
    asked = shop.simulator.summaries[made:]
    assert asked
    sent = {record.header("x-api-key" if format_ == "messages" else "authorization") for record in asked}
    assert sent == {KEY if format_ == "messages" else f"Bearer {KEY}"}
    assert all(b"order numbers" in record.body for record in asked)
    assert KEY not in await page.content()
    assert KEY not in page.url
    assert rest(shop.keeping, "/summaries", name)["data"]


async def test_what_cannot_be_compacted_is_said_on_the_page(shop: Shop, open_at: OpenAt) -> None:
    ask(shop.keeping, talk(0), name="nothing to do")
    # Messages are written after the answer.
    await asyncio.to_thread(until, lambda: rest(shop.keeping, "/messages", "nothing to do")["data"])
    page = await open_at(shop.keeping, shop.path("nothing to do"))
    await page.get_by_label("Key for the provider").fill(KEY)
    await page.get_by_role("button", name="Summarise older turns now").click()
    await expect(page.get_by_role("alert")).to_contain_text("nothing besides the verbatim tail.")


async def test_a_summary_is_edited_and_the_new_text_used(shop: Shop, open_at: OpenAt) -> None:
    name = "edited"
    ask(shop.keeping, talk(17), name=name)
    page = await open_at(shop.keeping, shop.path(name))
    await page.locator("#summaries .chunk-head a").first.click()
    before = page.url.rsplit("/", 1)[1]
    await page.get_by_text("Edit the text").click()
    await page.get_by_label("Text of the summary").fill("The clerk says <b>yes</b> to all.\nAnd that is it.")
    await page.get_by_role("button", name="Replace the summary").click()
    await expect(page.get_by_text("The text is saved")).to_be_visible()
    await expect(page.locator(".beside .whole").first).to_have_text(
        "The clerk says <b>yes</b> to all.\nAnd that is it."
    )
    assert before not in [each["id"] for each in rest(shop.keeping, "/summaries", name)["data"]]
    ask(shop.keeping, talk(17), name=name)
    assert "<b>yes</b> to all." in json.dumps(shop.simulator.chats[-1].payload)
    await page.goto(shop.path(name))
    await expect(page.locator("#summaries").get_by_text("edited", exact=True)).to_be_visible()


async def test_a_summary_is_deleted(shop: Shop, open_at: OpenAt) -> None:
    name = "without a summary"
    ask(shop.keeping, talk(17), name=name)
    page = await open_at(shop.keeping, shop.path(name))
    await page.locator("#summaries .chunk-head a").first.click()
    deleted = page.url.rsplit("/", 1)[1]
    await page.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("The summary is deleted")).to_be_visible()
    assert deleted not in [each["id"] for each in rest(shop.keeping, "/summaries", name)["data"]]


async def test_deleting_asks_first(shop: Shop, open_at: OpenAt) -> None:
    ask(shop.keeping, talk(1), name="to be deleted")
    page = await open_at(shop.keeping, shop.path("to be deleted"))
    await page.get_by_role("link", name="Delete this conversation").click()
    await page.get_by_role("link", name="Keep it").click()
    assert rest(shop.keeping, "", "to be deleted")
    await page.get_by_role("link", name="Delete this conversation").click()
    await page.get_by_role("button", name="Delete it").click()
    assert page.url.endswith("/ui/conversations")
    page = await open_at(shop.keeping, shop.path("to be deleted"))
    await expect(page.get_by_role("heading", name="Not found")).to_be_visible()


# Live


async def test_an_open_page_shows_a_new_summary(shop: Shop, open_at: OpenAt) -> None:
    name = "watched"
    ask(shop.keeping, json.loads(json.dumps(talk(2)).replace("ORD-0", "ORD-1")), name=name)
    page = await open_at(shop.keeping, shop.path(name))
    await expect(page.locator(".chunk")).to_have_count(0)
    history = json.loads(json.dumps(talk(17)).replace("ORD-0", "ORD-1"))
    await asyncio.to_thread(ask, shop.keeping, history, name)
    await expect(page.locator(".chunk").first).to_be_visible()
