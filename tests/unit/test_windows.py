"""Context windows: settings, then the provider's word, then a refusal's, then the registry, then a flagged guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from structlog.testing import capture_logs

from app.compaction.budget import Window
from app.compaction.overflow import Overflow
from app.errors import UpstreamUnreachable
from app.providers.model_listings import (
    REFRESH_CHANGING_SECONDS,
    REFRESH_SECONDS,
    RETRY_SECONDS,
    WAIT_SECONDS,
    ListingReader,
    ListingRefused,
    ModelListing,
    announced,
)
from app.providers.windows import LEARNT_SECONDS, Windows, lower, overflow_in
from app.runtime.caches import MOST_OF_ONE
from app.settings import Settings, load
from app.store import Store
from tests.e2e import running
from tests.unit.clock import Clock
from tests.unit.conversations import sure
from tests.unit.providers import MockedUpstream, listing

TENANT, ANOTHER = "one tenant", "another"
MODELS = "/v1/models"
STEPS = yaml.safe_load(Path(__file__).with_name("windows.yaml").read_text("utf-8"))
KEY = [(b"authorization", b"Bearer sk-caller"), (b"x-title", b"a chat")]
VLLM = listing({"id": "gpt-4o", "owned_by": "vllm", "max_model_len": 8_000})

Build = Callable[..., Windows]


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
def upstream() -> MockedUpstream:
    return MockedUpstream()


@pytest.fixture
async def build(upstream: MockedUpstream, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Build]:
    """Makes the service before a database that never started; it is stopped at the end."""
    running.forget_environment(monkeypatch)
    store, built = Store("memory"), list[Windows]()

    def build_one(**sections: Any) -> Windows:
        settings: Settings = load(**sections)
        built.append(Windows(settings.models, settings.upstream, upstream, store, clock))
        return built[-1]

    yield build_one
    for windows in built:
        await windows.stop()
    await store.close()


def overflow(limit: int | None, **changes: Any) -> Overflow:
    return Overflow("context_window", limit, **changes)


# Where a window is from


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("configured", Window(9_000, "config")),
        ("vendor/configured", Window(9_000, "config")),
        ("configured-too", Window(10_000, "config", 8_000)),
        ("chat-prod", Window(200_000, "bundled", None, 100_000)),
        ("gpt-4.1-mini", Window(8_000, "provider")),
        # A gateway's gpt-5 has 400,000 tokens, and still only 272,000 of them for the prompt.
        ("openai/gpt-5", Window(400_000, "provider", 272_000, 128_000)),
        ("gpt-5-mini", Window(128_000, "provider")),
        ("gpt-4-turbo", Window(128_000, "provider", None, 2_048)),
        ("mine", Window(400_000, "provider")),
        ("gpt-4o", Window(128_000, "bundled", None, 16_384)),
        ("my-model", Window(128_000, "default")),
    ],
)
async def test_settings_come_first_then_the_list_then_the_registry_then_a_guess(
    build: Build, upstream: MockedUpstream, model: str, expected: Window
) -> None:
    upstream.answers[MODELS] = listing(
        {"id": "configured", "context_length": 5_000},
        {"id": "gpt-4.1-mini", "max_model_len": 8_000},
        {"id": "openai/gpt-5", "context_length": 400_000},
        {"id": "gpt-5-mini", "context_length": 128_000},
        {"id": "gpt-4-turbo", "context_length": 128_000, "max_completion_tokens": 2_048},
        {"id": "mine", "context_length": 400_000},
    )
    windows = build(
        models=[
            {"match": "configured", "context_window": 9_000},
            {"match": "configured*", "context_window": 10_000, "max_input_tokens": 8_000},
            {"match": "chat-prod", "base_model": "o3"},
        ]
    )
    await windows.listings.fetch()
    assert replace(windows.window_of(model, TENANT), note=expected.note) == expected


# Learning


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
async def test_what_refusals_and_answers_teach(build: Build, clock: Clock, steps: list[dict[str, Any]]) -> None:
    windows = build(models=[{"match": "configured", "context_window": 32_000}])
    for step in steps:
        options = {"tenant": "one", "model": "gpt-4o"} | step
        (kind, value), *_ = step.items()
        del options[kind]
        if kind == "learn":
            windows.learn(overflow=overflow(value), **options)
        elif kind == "prompt":
            windows.add_prompt(tokens=value, **options)
        elif kind == "answers":
            for tenant in value:
                windows.add_answered(tenant)
        elif kind == "later":
            clock.now += value
        else:
            assert windows.window_of(**options).context == value, step


@pytest.mark.parametrize(
    ("base", "limit", "expected"),
    [
        (Window(128_000, "config"), 32_768, (32_768, "learnt", None)),
        (Window(32_768, "config"), 128_000, (32_768, "config", None)),
        (Window(32_768, "provider"), 32_768, (32_768, "provider", None)),
        (Window(400_000, "config", 272_000), 300_000, (400_000, "config", 272_000)),
        (Window(400_000, "provider", 272_000), 200_000, (200_000, "learnt", None)),
        (Window(128_000, "bundled"), 32_768, (32_768, "learnt", None)),
        (Window(128_000, "bundled"), 200_000, (200_000, "learnt", None)),
        (Window(400_000, "bundled", 272_000), 272_000, (400_000, "bundled", 272_000)),
        (Window(400_000, "bundled", 272_000), 300_000, (300_000, "learnt", 272_000)),
        (Window(128_000, "default"), 1_000_000, (1_000_000, "learnt", None)),
    ],
)
def test_a_limit_lowers_a_configured_or_announced_window_and_replaces_others(
    base: Window, limit: int, expected: tuple[int, str, int | None]
) -> None:
    lowered = lower(base, limit)
    assert (lowered.context, lowered.source, lowered.max_input) == expected


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (400, [(b"content-encoding", b"gzip")], b"prompt is too long: 40000 tokens > 32768 maximum"),
        (400, [], b"prompt is too long"),
        (504, [], b"prompt is too long: 40000 tokens > 32768 maximum"),
        (429, [], b"on tokens per min (TPM): Limit 10000, Requested 12000"),
    ],
)
async def test_a_refusal_that_names_no_window_teaches_none(
    build: Build, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    windows = build()
    found = overflow_in(status, headers, body)
    if found is not None:
        windows.learn(TENANT, "gpt-4o", found)
    assert windows.window_of("gpt-4o", TENANT).source == "bundled"


async def test_a_limit_that_lowers_what_was_set_is_logged_once(build: Build) -> None:
    windows = build(models=[{"match": "m", "context_window": 32_000}])
    with capture_logs() as said:
        for limit in (18_000, 18_000, 19_000, 64_000):
            windows.learn(TENANT, "m", overflow(limit))
            assert windows.window_of("m", TENANT).context == 18_000
    (warning,) = [line for line in said if line["log_level"] == "warning"]
    assert (warning["limit"], warning["before"], warning["now"]) == (18_000, 32_000, 18_000)


async def test_the_memory_of_refusals_and_prompts_is_bounded(build: Build) -> None:
    windows = build()
    windows.learn(TENANT, "x" * 1_000, overflow(32_768))
    windows.add_prompt(TENANT, "x" * 1_000, 9_000)
    windows.add_prompt(TENANT, "small", 999)
    assert not [*windows.limits, *windows._prompts]
    for number in range(MOST_OF_ONE + 1):
        windows.learn(TENANT, f"model {number}", overflow(32_768))
    assert len(list(windows.limits)) == MOST_OF_ONE
    assert windows.window_of("model 0", TENANT).source == "default"


# Who may know which names


async def test_names_are_those_of_the_list_the_settings_and_the_caller(build: Build, upstream: MockedUpstream) -> None:
    upstream.answers[MODELS] = listing({"id": "b"}, {"id": "ft:gpt-4o:acme::1"})
    windows = build(models=[{"match": "a", "context_window": 5_000}, {"match": "c*", "context_window": 5_000}])
    await windows.listings.fetch()
    windows.learn(ANOTHER, "secret", overflow(32_768))
    assert windows.names(["mine"]) == ["a", "b", "mine"]
    assert windows.names(["ft:gpt-4o:acme::1"]) == ["a", "b", "ft:gpt-4o:acme::1"]
    assert windows.names(windows.limits) == ["a", "b", "secret"]


async def test_the_names_that_a_key_lists_are_shown_to_no_tenant(build: Build, upstream: MockedUpstream) -> None:
    """The windows in the list hold for all tenants."""
    upstream.answers[MODELS] = lambda headers, _: VLLM if headers.get(b"authorization") == KEY[0][1] else 401
    windows = build()
    windows.start()
    await windows.wait_for_listing("gpt-4o")
    await windows.wait_for_listing("gpt-4o", KEY)
    assert (windows.names(), windows.names(["gpt-4o"])) == ([], ["gpt-4o"])
    assert windows.window_of("gpt-4o", TENANT).context == windows.window_of("gpt-4o", ANOTHER).context == 8_000


# When the provider is asked


async def test_a_key_that_is_refused_is_not_tried_by_every_request(
    build: Build, upstream: MockedUpstream, clock: Clock
) -> None:
    upstream.answers[MODELS] = 401
    windows = build()
    windows.start()
    for _ in range(4):
        await windows.wait_for_listing("gpt-4o", KEY)
    assert len(upstream.asked) == 2
    clock.now += RETRY_SECONDS
    await windows.wait_for_listing("gpt-4o", KEY)
    assert len(upstream.asked) == 3


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (VLLM, REFRESH_SECONDS),
        (listing({"id": "m", "owned_by": "library"}), REFRESH_CHANGING_SECONDS),
        (404, RETRY_SECONDS),
        (UpstreamUnreachable("gone"), RETRY_SECONDS),
        (ValueError("odd"), RETRY_SECONDS),
    ],
)
async def test_the_next_question_comes_after_a_pause_that_fits_the_answer(
    build: Build, upstream: MockedUpstream, clock: Clock, answer: Any, pause: float
) -> None:
    upstream.answers[MODELS] = answer
    windows = build()
    with capture_logs():  # Otherwise an odd error would be drawn with all that is near it.
        windows.listings._ask(())
        assert windows.listings._asking is not None
        await windows.listings._asking
    assert windows.listings._due == clock.now + pause


async def test_a_provider_that_hangs_delays_only_the_first_moment(
    build: Build, upstream: MockedUpstream, clock: Clock
) -> None:
    upstream.delay = 30.0
    windows = build()
    windows.start()
    clock.now += WAIT_SECONDS
    async with asyncio.timeout(10.0):
        await windows.wait_for_listing("gpt-4o")


async def test_a_list_that_was_read_stays_when_the_next_question_fails(
    build: Build, upstream: MockedUpstream, clock: Clock
) -> None:
    upstream.answers[MODELS] = VLLM
    windows = build()
    await windows.listings.fetch()
    upstream.answers[MODELS] = 500
    clock.now += LEARNT_SECONDS
    windows.listings._ask(())
    await windows.wait_for_listing("gpt-4o")
    assert windows.window_of("gpt-4o", TENANT).source == "provider"


# Lists of models

CASES = yaml.safe_load(Path(__file__).with_name("model_listings.yaml").read_text("utf-8"))
SERVERS = CASES["servers"]


async def read(upstream: MockedUpstream, path: str = "") -> ModelListing:
    return await ListingReader(upstream, path).read()


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        *CASES["entries"],
        ({"context_length": 2**63, "max_model_len": "9" * 5_000, "max_context_length": 8_192}, (8_192, None, None)),
    ],
)
def test_an_entry_names_its_window_in_many_ways(
    entry: dict[str, Any], window: tuple[int, int | None, int | None] | None
) -> None:
    assert announced(entry) == (window and Window(window[0], "provider", window[1], window[2]))


@pytest.mark.parametrize("case", SERVERS.values(), ids=SERVERS)
async def test_the_windows_of_a_server(case: dict[str, Any]) -> None:
    answers = dict(case["answers"])
    answers[MODELS] = listing(*answers[MODELS])
    upstream = MockedUpstream({path: told.encode() if told == "<html>" else told for path, told in answers.items()})
    found = await read(upstream, case.get("path", ""))
    for name, expected in case["windows"].items():
        context, note = expected if isinstance(expected, list) else (expected, "")
        window = found.of(name)
        assert (window and window.context) == context, name
        assert window is None or note in (window.note or "")
    assert found.changes is case.get("changes", False)
    assert upstream.paths == case.get("asked", upstream.paths)


@pytest.mark.parametrize(("shown", "context", "note"), CASES["shown"])
async def test_a_model_that_ollama_has_not_loaded_has_the_window_it_would_get(
    shown: dict[str, Any], context: int, note: str | None
) -> None:
    entry = {"id": "m:latest", "owned_by": "library", "created": 1}
    window = sure((await read(MockedUpstream({MODELS: listing(entry), "/api/show": shown}))).of("m"))
    assert window.context == context
    assert (note or "") in str(window.note)


async def test_a_model_that_ollama_unloaded_keeps_its_window() -> None:
    entries = [{"id": name, "owned_by": "library", "created": 1} for name in ("m:latest", "other:latest")]
    running = {"models": [{"name": "m:latest", "context_length": 65_536}]}
    upstream = MockedUpstream({MODELS: listing(*entries), "/api/ps": running, "/api/show": {}})
    reader = ListingReader(upstream, "")
    await reader.read()
    upstream.answers["/api/ps"] = {"models": []}
    window = sure((await reader.read()).of("m"))
    assert window.context == 65_536
    assert upstream.paths.count("/api/show") == 1, "other:latest is asked about once"


async def test_a_list_that_comes_in_pages_is_asked_for_whole() -> None:
    """Anthropic's, which names the bounds of prompts and answers."""
    entries = [
        {"type": "model", "id": f"claude-{number}", "max_input_tokens": 200_000, "max_tokens": 64_000}
        for number in range(3)
    ]
    upstream = MockedUpstream(
        {
            MODELS: {"data": entries[:2], "has_more": True, "last_id": "claude-1"},
            f"{MODELS}?limit=1000": {"data": entries, "has_more": False},
        }
    )
    assert (await read(upstream)).of("claude-2") == Window(200_000, "provider", max_output=64_000)


async def test_a_header_that_an_api_wants_in_every_request_is_sent_unless_the_caller_sends_it() -> None:
    upstream = MockedUpstream({MODELS: listing({"id": "a"})})
    reader = ListingReader(upstream, "/v1", [(b"anthropic-version", b"2023-06-01")])
    await reader.read()
    await reader.read([(b"anthropic-version", b"2099-01-01")])
    assert [headers[b"anthropic-version"] for _, headers, _ in upstream.asked] == [b"2023-06-01", b"2099-01-01"]


async def test_gemini_names_windows_beside_its_compatible_api() -> None:
    listed = [{"name": "models/gem", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536}, {"name": "models/x"}]
    entries = [{"id": name, "owned_by": "google"} for name in ("models/gem", "models/x")]
    upstream = MockedUpstream({MODELS: listing(*entries), "/v1beta/models?pageSize=1000": {"models": listed}})
    found = await ListingReader(upstream, "/v1beta/openai").read([(b"authorization", b"Bearer abc")])
    assert found.of("gem") == found.of("models/gem") == Window(1_048_576, "provider", max_output=65_536)
    assert found.of("x") is None
    assert upstream.asked[-1][1][b"x-goog-api-key"] == b"abc"
    assert b"authorization" not in upstream.asked[-1][1]
    assert (await read(upstream)).of("gem") is None  # Google's models, listed by another provider.


async def test_the_list_stands_where_a_path_beside_it_cannot_be_reached() -> None:
    entry = {"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}}
    found = await read(MockedUpstream({MODELS: listing(entry), "/props": UpstreamUnreachable("gone")}))
    assert found.models == {"m": None}


# Odd answers


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"data": 5}', b'{"data": [5, {"id": 7}, {"object": "model"}]}'])
async def test_json_that_is_no_list_of_models_lists_none(body: bytes) -> None:
    assert (await read(MockedUpstream({MODELS: body}))).models == {}


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 5_000])
async def test_an_answer_that_is_no_json_is_a_refusal(body: bytes) -> None:
    with pytest.raises(ListingRefused, match="200"):
        await read(MockedUpstream({MODELS: body}))


@pytest.mark.parametrize(("status", "wants_key"), [(401, True), (403, True), (404, False), (500, False)])
async def test_a_refusal_says_whether_a_key_would_help(status: int, wants_key: bool) -> None:
    with pytest.raises(ListingRefused) as refused:
        await read(MockedUpstream({MODELS: status}))
    assert refused.value.wants_key is wants_key


@pytest.mark.parametrize(
    "odd",
    [
        b'{"id": "odd", "owned_by": ["x"]}',
        b'{"id": "odd", "parent": [1]}',
        b'{"id": "odd", "context_length": "%s"}' % (b"9" * 5_000),
        b'{"id": ["odd"]}',
        b'{"id": ""}',
        b'{"id": "%s", "context_length": 8192}' % (b"x" * 301),
        b"null",
    ],
)
@pytest.mark.parametrize("around", [b'{"object": "list", "data": [%s]}', b"[%s]"])  # The second is Together's.
async def test_one_odd_entry_does_not_take_the_others_with_it(odd: bytes, around: bytes) -> None:
    entries = b", ".join([odd, b'{"id": "good", "context_length": 8192}'])
    found = await read(MockedUpstream({MODELS: around % entries}))
    assert found.of("good") == Window(8_192, "provider")
    assert all(name.isprintable() and 0 < len(name) <= 300 for name in found.models)
    assert found.of("odd") is None
