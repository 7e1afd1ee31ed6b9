"""Listings: the windows that providers announce, each in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from app.compaction.budget import Window
from app.errors import UpstreamUnreachable
from app.providers.model_listings import ListingReader, ListingRefused, ModelListing, announced
from tests.unit.conversations import sure
from tests.unit.providers import MockedUpstream, listing

CASES = yaml.safe_load(Path(__file__).with_name("model_listings.yaml").read_text("utf-8"))
SERVERS = CASES["servers"]
MODELS = "/v1/models"


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
        b'{"id": "odd", "context_length": %s}' % (b"9" * 5_000),
        b'{"id": "odd", "context_length": "%s"}' % (b"9" * 5_000),
        b'{"id": "odd", "context_length": 1e999}',
        b'{"id": "odd", "context_length": NaN}',
        b'{"id": "odd\\ud800"}',
        b'{"id": "odd\xff"}',
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
