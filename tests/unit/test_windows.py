"""Context windows: settings, then the provider's word, then a refusal's, then the registry, then a flagged guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
import respx
from msgspec.structs import replace
from structlog.testing import capture_logs

from app.core.limits.budget import Window
from app.core.limits.overflow import Overflow
from app.providers.known_windows import GUESSED
from app.providers.learnt_limits import LEARNT_SECONDS, lowered, overflow_in
from app.providers.listings import REFRESH_CHANGING_SECONDS, REFRESH_SECONDS, RETRY_SECONDS, WAIT_SECONDS
from app.providers.windows import Windows
from app.runtime.sightings import MOST_OF_ONE
from app.settings import Settings, load
from app.settings.presets import PRESETS
from app.store import Store
from tests.e2e import running
from tests.unit.clock import Clock
from tests.unit.providers import MockedUpstream, listing

pytestmark = pytest.mark.usefixtures("network")

TENANT, ANOTHER, THIRD = "one tenant", "another", "a third"
MODELS = "/v1/models"
DEFAULT = Window(128_000, "default", note=GUESSED)
KEY = [(b"authorization", b"Bearer sk-caller"), (b"x-title", b"a chat")]
VLLM = listing({"id": "gpt-4o", "owned_by": "vllm", "max_model_len": 8_000})

Build = Callable[..., Windows]


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000.0)


@pytest.fixture
def upstream(network: respx.MockRouter) -> MockedUpstream:  # noqa: ARG001 - which it is in
    return MockedUpstream()


@pytest.fixture
async def build(upstream: MockedUpstream, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Build]:
    """Makes the service before a database that never started; it is stopped at the end."""
    running.forget_environment(monkeypatch)
    store, built = Store("memory"), list[Windows]()

    def build_one(**sections: Any) -> Windows:
        settings: Settings = load(**sections)
        guess = PRESETS[settings.compaction.preset].guessed_window
        built.append(Windows(settings.models, guess, settings.upstream, upstream, store, clock))
        return built[-1]

    yield build_one
    for windows in built:
        await windows.stop()
    await store.close()


def overflow(limit: int | None, **changes: Any) -> Overflow:
    return Overflow("context_window", limit, **changes)


# Where a window is from


async def test_a_setting_comes_first_and_the_first_of_them_decides(build: Build, upstream: MockedUpstream) -> None:
    upstream.answers[MODELS] = VLLM
    windows = build(
        models=[{"match": "gpt-4o", "context_window": 9_000}, {"match": "gpt-4*", "context_window": 10_000}]
    )
    await windows.listings.discover()
    assert windows.of("openai/gpt-4o", TENANT) == Window(9_000, "config")
    assert windows.of("gpt-4.1", TENANT).context == 10_000
    assert windows.of("gpt-5", TENANT).source == "bundled"


async def test_the_providers_word_goes_before_the_registry(build: Build, upstream: MockedUpstream) -> None:
    upstream.answers[MODELS] = VLLM
    windows = build()
    assert windows.of("gpt-4o", TENANT) == Window(128_000, "bundled", max_output=16_384)
    await windows.listings.discover()
    assert windows.of("gpt-4o", TENANT) == Window(8_000, "provider")
    assert windows.listed("gpt-4o")
    assert not windows.listed("gpt-5")


async def test_a_list_that_tells_the_context_alone_is_completed_where_it_is_the_one_we_know(
    build: Build, upstream: MockedUpstream
) -> None:
    """A gateway's gpt-5 has 400,000 tokens, and still only 272,000 of them for the prompt."""
    upstream.answers[MODELS] = listing(
        {"id": "openai/gpt-5", "context_length": 400_000},
        {"id": "gpt-5-mini", "context_length": 128_000},
        {"id": "gpt-4o", "context_length": 128_000, "max_completion_tokens": 4_096},
        {"id": "mine", "context_length": 400_000},
    )
    windows = build()
    await windows.listings.discover()
    assert windows.of("openai/gpt-5", TENANT) == Window(400_000, "provider", 272_000, 128_000)
    assert windows.of("gpt-5-mini", TENANT) == Window(128_000, "provider")
    assert windows.of("gpt-4o", TENANT) == Window(128_000, "provider", None, 4_096)
    assert windows.of("mine", TENANT) == Window(400_000, "provider")


async def test_an_unknown_model_gets_a_guess_that_is_flagged(build: Build) -> None:
    assert build().of("my-model") == DEFAULT
    assert DEFAULT.source == "default"


async def test_a_conversations_policy_guesses_for_itself_and_overrules_nobody_who_knows(build: Build) -> None:
    windows = build(compaction={"preset": "openclaw-adaptive"})
    assert windows.of("my-model", TENANT, 64_000) == replace(DEFAULT, context=64_000)
    assert windows.of("my-model", TENANT).context == 200_000  # as for whoever writes that conversation's summaries
    assert windows.of("gpt-4o", TENANT, 64_000).source == "bundled"
    windows.learn(TENANT, "my-model", overflow(32_000))
    assert windows.of("my-model", TENANT, 64_000).context == 32_000


# What a refusal told


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
        (DEFAULT, 1_000_000, (1_000_000, "learnt", None)),
    ],
)
def test_a_learnt_limit_lowers_what_is_said_and_wins_over_what_is_guessed(
    base: Window, limit: int, expected: tuple[int, str, int | None]
) -> None:
    window = lowered(base, limit)
    assert (window.context, window.source, window.max_input) == expected


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (400, [(b"content-encoding", b"gzip")], b"prompt is too long: 40000 tokens > 32768 maximum"),
        (400, [], b"prompt is too long"),
        (504, [], b"prompt is too long: 40000 tokens > 32768 maximum"),
        (429, [], b"on tokens per min (TPM): Limit 10000, Requested 12000"),
    ],
)
async def test_a_refusal_that_tells_no_window_teaches_none(
    build: Build, status: int, headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    windows = build()
    found = overflow_in(status, headers, body)
    if found is not None:
        windows.learn(TENANT, "gpt-4o", found)
    assert windows.of("gpt-4o", TENANT).source == "bundled"


async def test_a_window_that_headers_ask_for_is_one_of_its_own(build: Build) -> None:
    """A limit that was told without it says nothing of requests with it, nor does an answer to one of those."""
    windows = build()
    known = windows.of("claude-sonnet-4-5", TENANT)
    asked = 5 * known.context
    assert windows.of("claude-sonnet-4-5", TENANT, asked=asked).context == asked
    windows.learn(TENANT, "claude-sonnet-4-5", overflow(90_000))
    windows.succeeded(TENANT, "claude-sonnet-4-5", known.context + 1, asked)
    assert windows.of("claude-sonnet-4-5", TENANT).context == 90_000
    assert windows.of("claude-sonnet-4-5", TENANT, asked=asked).context == asked
    windows.learn(TENANT, "claude-sonnet-4-5", overflow(asked // 2), asked=asked)
    assert windows.of("claude-sonnet-4-5", TENANT, asked=asked).context == asked // 2
    assert windows.of("claude-sonnet-4-5", TENANT).context == 90_000


async def test_a_limit_that_lowers_what_was_set_is_logged_once(build: Build) -> None:
    windows = build(models=[{"match": "m", "context_window": 32_000}])
    with capture_logs() as said:
        for limit in (18_000, 18_000, 19_000, 64_000):
            windows.learn(TENANT, "m", overflow(limit))
            assert windows.of("m", TENANT).context == 18_000
    (warning,) = [line for line in said if line["log_level"] == "warning"]
    assert (warning["limit"], warning["before"], warning["now"]) == (18_000, 32_000, 18_000)


async def test_a_prompt_that_was_answered_drops_a_smaller_limit(build: Build) -> None:
    windows = build()
    windows.learn(TENANT, "gpt-4o", overflow(32_768))
    windows.succeeded(TENANT, "gpt-4o", 32_768)
    assert windows.of("gpt-4o", TENANT).source == "learnt"
    windows.succeeded(TENANT, "gpt-4o", 32_769)
    assert windows.of("gpt-4o", TENANT).source == "bundled"
    windows.succeeded(TENANT, "never-learnt", 1_000_000)


async def test_a_limit_below_what_was_answered_is_not_learnt(build: Build) -> None:
    windows = build()
    windows.succeeded(TENANT, "gpt-4o", 9_000)
    windows.succeeded(TENANT, "gpt-4o", 100)
    windows.learn(TENANT, "gpt-4o", overflow(8_999))
    assert windows.of("gpt-4o", TENANT).source == "bundled"
    windows.learn(TENANT, "gpt-4o", overflow(9_000))
    assert windows.of("gpt-4o", TENANT).context == 9_000
    windows.learn(TENANT, "gpt-4.1", overflow(8_999))
    assert windows.of("gpt-4.1", TENANT).context == 8_999


async def test_what_was_answered_more_than_a_day_ago_proves_nothing(build: Build, clock: Clock) -> None:
    """A local server may have been started anew with less."""
    windows = build()
    windows.succeeded(TENANT, "gpt-4o", 9_000)
    clock.now += LEARNT_SECONDS
    windows.learn(TENANT, "gpt-4o", overflow(8_000))
    assert windows.of("gpt-4o", TENANT).context == 8_000


async def test_a_limit_below_the_output_that_was_asked_for_is_not_learnt(build: Build) -> None:
    windows = build()
    windows.learn(TENANT, "gpt-4o", overflow(4_096), 7_168)
    assert windows.of("gpt-4o", TENANT).source == "bundled"
    windows.learn(TENANT, "gpt-4o", overflow(8_192), 8_192)
    assert windows.of("gpt-4o", TENANT).context == 8_192


async def test_what_is_no_prompt_of_a_model_proves_nothing(build: Build) -> None:
    windows = build()
    windows.succeeded(TENANT, "x" * 1_000, 9_000)
    windows.succeeded(TENANT, "small", 999)
    assert not list(windows.learnt._prompts)


async def test_a_learnt_limit_is_forgotten_after_a_day(build: Build, clock: Clock) -> None:
    windows = build()
    windows.learn(TENANT, "gpt-4o", overflow(32_768))
    clock.now += LEARNT_SECONDS - 1
    assert windows.of("gpt-4o", TENANT).source == "learnt"
    clock.now += 1
    assert windows.of("gpt-4o", TENANT).source == "bundled"


async def test_the_memory_of_refusals_is_bounded(build: Build) -> None:
    windows = build()
    windows.learn(TENANT, "x" * 1_000, overflow(32_768))
    assert not list(windows.learnt._limits)
    for number in range(MOST_OF_ONE + 1):
        windows.learn(TENANT, f"model {number}", overflow(32_768))
    assert len(list(windows.learnt._limits)) == MOST_OF_ONE
    assert windows.of("model 0", TENANT).source == "default"


# For whom it holds


async def test_a_limit_holds_for_the_tenant_that_was_told_it_until_a_second_one_is(build: Build) -> None:
    windows = build()
    for tenant in (TENANT, ANOTHER):
        windows.learnt.accepts(tenant)
    windows.learn(TENANT, "gpt-4o", overflow(32_768))
    assert [windows.of("gpt-4o", who).context for who in (TENANT, ANOTHER)] == [32_768, 128_000]
    windows.learn(ANOTHER, "gpt-4o", overflow(64_000))
    assert windows.of("gpt-4o", THIRD).source == "bundled"
    windows.learn(ANOTHER, "gpt-4o", overflow(32_000))
    assert windows.of("gpt-4o", THIRD).context == 32_768
    assert windows.of("gpt-4o", ANOTHER).context == 32_000


async def test_whom_the_provider_never_answered_confirms_nothing(build: Build) -> None:
    """A key can be made up."""
    windows = build()
    windows.learnt.accepts(TENANT)
    for tenant in (TENANT, ANOTHER):
        windows.learn(tenant, "gpt-4o", overflow(32_768))
    assert windows.of("gpt-4o", THIRD).source == "bundled"
    windows.learnt.accepts(ANOTHER)
    assert windows.of("gpt-4o", THIRD).context == 32_768


async def test_what_one_tenant_was_answered_proves_nothing_for_another(build: Build) -> None:
    """Accounts differ in what they may send."""
    windows = build()
    for tenant in (TENANT, ANOTHER, THIRD):
        windows.learnt.accepts(tenant)
    windows.succeeded(TENANT, "gpt-4o", 100_000)
    windows.learn(ANOTHER, "gpt-4o", overflow(32_768))
    windows.succeeded(TENANT, "gpt-4o", 100_001)
    assert windows.of("gpt-4o", ANOTHER).context == 32_768
    windows.succeeded(THIRD, "gpt-4o", 40_000)
    windows.learn("a fourth", "gpt-4o", overflow(32_768))
    assert windows.of("gpt-4o", "a fourth").source == "bundled", "two others were answered 40,000"


async def test_no_refusal_takes_more_than_half_of_what_the_operator_set(build: Build) -> None:
    windows = build(models=[{"match": "m", "context_window": 32_000}])
    for tenant in (TENANT, ANOTHER):
        windows.learnt.accepts(tenant)
        windows.learn(tenant, "m", overflow(15_999))
    assert windows.of("m", TENANT).source == "config"
    windows.learn(TENANT, "m", overflow(16_000))
    assert windows.of("m", TENANT).context == 16_000


# Who may know which names


async def test_names_are_those_of_the_list_the_settings_and_the_caller(build: Build, upstream: MockedUpstream) -> None:
    upstream.answers[MODELS] = listing({"id": "b"}, {"id": "ft:gpt-4o:acme::1"})
    windows = build(models=[{"match": "a", "context_window": 5_000}, {"match": "c*", "context_window": 5_000}])
    await windows.listings.discover()
    windows.learn(ANOTHER, "secret", overflow(32_768))
    assert windows.names_for(TENANT, ["mine"]) == ["a", "b", "mine"]
    assert windows.names_for(TENANT, ["ft:gpt-4o:acme::1"]) == ["a", "b", "ft:gpt-4o:acme::1"]
    assert windows.names() == ["a", "b", "secret"]


async def test_a_list_that_was_read_with_a_key_is_shown_to_whose_key_it_is(
    build: Build, upstream: MockedUpstream, clock: Clock
) -> None:
    """The windows in it hold for all, and what another key is shown takes none of them away."""
    shown = {b"Bearer sk-caller": VLLM, b"Bearer sk-other": listing({"id": "b"}, {"id": "gpt-4o"})}
    upstream.answers[MODELS] = lambda headers, _: shown.get(headers.get(b"authorization"), 401)
    windows = build()
    windows.start()
    await windows.listings.settled("gpt-4o")
    await windows.listings.settled("gpt-4o", TENANT, KEY)
    assert (windows.names_for(TENANT, []), windows.names_for(ANOTHER, [])) == (["gpt-4o"], [])
    assert (windows.listed("gpt-4o", TENANT), windows.listed("gpt-4o", ANOTHER)) == (True, False)
    assert windows.of("gpt-4o", ANOTHER).context == 8_000
    other = [(b"authorization", b"Bearer sk-other")]
    for _ in range(2):
        await windows.listings.show(ANOTHER, other)
        await windows.listings.show(THIRD, [(b"authorization", b"Bearer sk-made-up")])
    assert (windows.names_for(TENANT, []), windows.names_for(ANOTHER, [])) == (["gpt-4o"], ["b", "gpt-4o"])
    assert windows.names_for(THIRD, []) == []
    assert windows.of("gpt-4o", THIRD).context == 8_000
    asked = [headers.get(b"authorization") for _, headers, _ in upstream.asked]
    assert asked.count(b"Bearer sk-other") == 1
    clock.now += REFRESH_SECONDS
    await windows.listings.show(ANOTHER, other)
    assert len(upstream.asked) == len(asked) + 1


# When the provider is asked


async def test_a_provider_is_asked_at_the_start_without_credentials(build: Build, upstream: MockedUpstream) -> None:
    upstream.answers[MODELS] = VLLM
    windows = build()
    windows.start()
    await windows.listings.settled("gpt-4o", TENANT, KEY)
    assert windows.of("gpt-4o", TENANT).source == "provider"
    [(_, headers, _)] = upstream.asked
    assert b"authorization" not in headers


async def test_a_provider_that_wants_a_key_is_asked_with_the_callers(build: Build, upstream: MockedUpstream) -> None:
    upstream.answers[MODELS] = lambda headers, _: VLLM if b"authorization" in headers else 401
    windows = build()
    windows.start()
    await windows.listings.settled("gpt-4o")
    assert windows.of("gpt-4o", TENANT).source == "bundled"
    await windows.listings.settled("gpt-4o", TENANT, [(b"x-title", b"no key")])
    await windows.listings.settled("gpt-4o", TENANT, KEY)
    assert windows.of("gpt-4o", TENANT).source == "provider"
    assert len(upstream.asked) == 2
    assert upstream.asked[1][1][b"authorization"] == b"Bearer sk-caller"
    assert b"x-title" not in upstream.asked[1][1]


async def test_a_key_that_is_refused_is_not_tried_by_every_request(
    build: Build, upstream: MockedUpstream, clock: Clock
) -> None:
    upstream.answers[MODELS] = 401
    windows = build()
    windows.start()
    for _ in range(4):
        await windows.listings.settled("gpt-4o", TENANT, KEY)
    assert len(upstream.asked) == 2
    clock.now += RETRY_SECONDS
    await windows.listings.settled("gpt-4o", TENANT, KEY)
    assert len(upstream.asked) == 3


@pytest.mark.parametrize(
    ("answer", "pause"),
    [
        (VLLM, REFRESH_SECONDS),
        (listing({"id": "m", "owned_by": "library"}), REFRESH_CHANGING_SECONDS),
        (404, RETRY_SECONDS),
        (httpx2.ConnectError("gone"), RETRY_SECONDS),
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
    clock.now += WAIT_SECONDS - 0.05
    began = asyncio.get_running_loop().time()
    await windows.listings.settled("gpt-4o")
    assert 0.04 <= asyncio.get_running_loop().time() - began < 0.5
    clock.now += 1.0
    began = asyncio.get_running_loop().time()
    await windows.listings.settled("gpt-4o")
    assert asyncio.get_running_loop().time() - began < 0.04


async def test_a_provider_is_not_asked_where_that_is_switched_off(build: Build, upstream: MockedUpstream) -> None:
    windows = build(upstream={"discover_windows": False})
    windows.start()
    await windows.listings.settled("gpt-4o", TENANT, KEY)
    await asyncio.sleep(0)
    assert upstream.asked == []


async def test_a_list_that_was_read_stays_when_the_next_question_fails(
    build: Build, upstream: MockedUpstream, clock: Clock
) -> None:
    upstream.answers[MODELS] = VLLM
    windows = build()
    await windows.listings.discover()
    upstream.answers[MODELS] = 500
    clock.now += LEARNT_SECONDS
    windows.listings._ask(())
    await windows.listings.settled("gpt-4o")
    assert windows.of("gpt-4o", TENANT).source == "provider"
