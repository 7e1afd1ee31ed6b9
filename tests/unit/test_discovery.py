"""Discovery: the windows that providers announce, each in its own way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml

from app.core.limits.budget import Window
from app.providers.discovery import Discovery, ListingRefused, ModelListing, announced
from tests.unit.conversations import sure
from tests.unit.providers import MockedUpstream, listing

pytestmark = pytest.mark.usefixtures("network")

ENTRIES = yaml.safe_load(Path(__file__).with_name("discovery.yaml").read_text("utf-8"))["entries"]
MODELS = "/v1/models"


async def ask(upstream: MockedUpstream, root: str = "") -> ModelListing:
    return await Discovery(upstream, root, 5.0).listing()


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        *ENTRIES,
        ({"context_length": 2**63, "max_model_len": "9" * 5_000, "max_context_length": 8_192}, (8_192, None, None)),
    ],
)
def test_an_entry_tells_its_window_by_many_names(
    entry: dict[str, Any], window: tuple[int, int | None, int | None] | None
) -> None:
    assert announced(entry) == (window and Window(window[0], "provider", window[1], window[2]))


async def test_a_provider_that_is_no_local_server_is_asked_for_its_models_only() -> None:
    upstream = MockedUpstream({MODELS: listing({"id": "a", "owned_by": "vllm", "max_model_len": 4_096}, {"id": "b"})})
    found = await ask(upstream)
    assert upstream.paths == [MODELS]
    assert found.of("a") == Window(4_096, "provider")
    assert found.of("b") is None
    assert found.of("c") is None
    assert not found.changes


async def test_a_list_that_comes_in_pages_is_asked_for_whole() -> None:
    """Anthropic's, which tells what a prompt and an answer may have."""
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
    found = await ask(upstream)
    assert found.of("claude-2") == Window(200_000, "provider", max_output=64_000)


async def test_what_an_api_wants_said_in_every_request_is_said_unless_the_caller_says_it() -> None:
    upstream = MockedUpstream({MODELS: listing({"id": "a"})})
    discovery = Discovery(upstream, "/v1", 5.0, [(b"anthropic-version", b"2023-06-01")])
    await discovery.listing()
    await discovery.listing([(b"anthropic-version", b"2099-01-01")])
    assert [headers[b"anthropic-version"] for _, headers, _ in upstream.asked] == [b"2023-06-01", b"2099-01-01"]


async def test_an_adapter_has_the_window_of_its_parent() -> None:
    entries = {"id": "base", "max_model_len": 4_096}, {"id": "lora", "parent": "base"}
    found = await ask(MockedUpstream({MODELS: listing(*entries)}))
    assert found.of("lora") == Window(4_096, "provider")


async def test_names_are_found_as_clients_may_write_them() -> None:
    entries = {"id": "models/Gem", "context_length": 1_000}, {"id": "llama3:latest", "context_length": 2_000}
    found = await ask(MockedUpstream({MODELS: listing(*entries)}))
    assert found.of("gem") == found.of("models/gem") == Window(1_000, "provider")
    assert found.of("Llama3") == Window(2_000, "provider")


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"data": 5}', b'{"data": [5, {"id": 7}, {"object": "model"}]}'])
async def test_what_is_no_list_of_models_lists_none(body: bytes) -> None:
    assert (await ask(MockedUpstream({MODELS: body}))).models == {}


@pytest.mark.parametrize("body", [b"<html>", b"", b"[" * 5_000])
async def test_what_is_no_json_is_a_refusal(body: bytes) -> None:
    with pytest.raises(ListingRefused, match="200"):
        await ask(MockedUpstream({MODELS: body}))


async def test_a_list_without_an_object_around_it_is_understood() -> None:
    """Together's."""
    found = await ask(MockedUpstream({MODELS: listing({"id": "a", "context_length": 131_072})["data"]}))
    assert found.of("a") == Window(131_072, "provider")


@pytest.mark.parametrize(
    "odd",
    [
        b'{"id": "odd", "owned_by": ["x"]}',
        b'{"id": "odd", "owned_by": {"x": 1}}',
        b'{"id": "odd", "parent": [1]}',
        b'{"id": "odd", "context_length": %s}' % (b"9" * 5_000),
        b'{"id": "odd", "context_length": "%s"}' % (b"9" * 5_000),
        b'{"id": "odd", "context_length": 1e999}',
        b'{"id": "odd", "context_length": NaN}',
        b'{"id": "odd\\ud800"}',
        b'{"id": "odd\xff"}',
        b'{"id": ["odd"]}',
        b'{"id": 7}',
        b'{"id": ""}',
        b'{"id": "%s", "context_length": 8192}' % (b"x" * 301),
        b"null",
    ],
)
@pytest.mark.parametrize("around", [b'{"object": "list", "data": [%s]}', b"[%s]"])
async def test_one_odd_entry_does_not_take_the_others_with_it(odd: bytes, around: bytes) -> None:
    entries = b", ".join([odd, b'{"id": "good", "context_length": 8192}'])
    found = await ask(MockedUpstream({MODELS: around % entries}))
    assert found.of("good") == Window(8_192, "provider")
    assert all(name.isprintable() and 0 < len(name) <= 300 for name in found.models)
    assert found.of("odd") is None


@pytest.mark.parametrize(("status", "wants_key"), [(401, True), (403, True), (404, False), (500, False)])
async def test_a_refusal_says_whether_a_key_would_help(status: int, wants_key: bool) -> None:
    with pytest.raises(ListingRefused) as refused:
        await ask(MockedUpstream({MODELS: status}))
    assert refused.value.wants_key is wants_key


@pytest.mark.parametrize(
    ("path", "target", "told", "found"),
    [
        ("", "/v1/v1/models", listing({"id": "m"}), "/v1"),
        ("/api", "/api/v1/models", listing({"id": "m"}), "/api/v1"),
        ("/llm", "/v1/v1/models", listing({"id": "m"}), "/llm/v1"),
        ("/v1", "/api/v1/models", listing({"id": "m"}), "/api/v1"),
        ("/api/v1", "/openai/v1/models", listing({"id": "m"}), "/openai/v1"),
        ("", "/v1beta/openai/models", listing({"id": "m"}), "/v1beta/openai"),
        ("", "/v1/v1/models", b"<html>", None),
        ("", "/v1/v1/models", {"data": []}, None),
        ("", "/v1/v1/models", httpx2.ConnectError("gone"), None),
    ],
)
async def test_an_api_is_looked_for_below_the_path_and_where_others_have_it(
    path: str, target: str, told: Any, found: str | None
) -> None:
    """The client puts the base URL's path, here /v1, in place of the first /v1 of a target."""
    there = target.removeprefix("/v1") if target.startswith("/v1/") else target
    upstream = MockedUpstream({f"/v1{there}" if target != there else there: told})
    assert await Discovery(upstream, path, 5.0).elsewhere() == found


async def test_a_router_has_the_least_of_its_hosts_windows_and_that_of_the_one_that_is_named() -> None:
    """Hugging Face's."""
    hosts = [
        {"provider": "one", "status": "live", "context_length": 262_144},
        {"provider": "two", "status": "live", "context_length": 131_072, "supports_tools": True},
        {"provider": "gone", "status": "error", "context_length": 8_192},
        {"provider": "silent", "status": "live"},
        "odd",
    ]
    entries = {"id": "org/model", "providers": hosts}, {"id": "org/other", "providers": [{"provider": "silent"}]}
    found = await ask(MockedUpstream({MODELS: listing(*entries)}))
    assert found.of("org/model") == found.of("Org/Model:two") == Window(131_072, "provider")
    assert found.of("org/model:one") == Window(262_144, "provider")
    assert found.of("org/other") is None


# TabbyAPI


async def test_tabby_answers_with_the_model_that_is_loaded_whatever_is_asked_for() -> None:
    entries = [{"id": name, "owned_by": "tabbyAPI", "parameters": None} for name in ("a", "b")]
    loaded = {"id": "b", "owned_by": "tabbyAPI", "parameters": {"max_seq_len": 16_384, "cache_size": 32_768}}
    found = await ask(MockedUpstream({MODELS: listing(*entries), "/v1/model": loaded}))
    assert found.of("b") == found.of("a") == found.of("gpt-4o") == Window(16_384, "provider")
    assert found.changes
    assert (await ask(MockedUpstream({MODELS: listing(*entries), "/v1/model": 401}))).of("a") is None


# LiteLLM

LITELLM = [{"id": name, "created": 1_677_610_602, "owned_by": "openai"} for name in ("house", "other")]


async def test_litellm_tells_what_stands_behind_its_names_and_the_least_of_several_counts() -> None:
    info = [
        {"model_name": "house", "model_info": {"max_tokens": 16_384, "max_input_tokens": 128_000}},
        {"model_name": "house", "model_info": {"max_input_tokens": 32_000, "max_output_tokens": 4_096}},
        {"model_name": "house", "model_info": {"max_input_tokens": 64_000}},
        {"model_name": "other", "model_info": {"max_input_tokens": None}},
        {"model_name": "not-listed", "model_info": {"max_input_tokens": 8_192}},
        {"model_info": {}},
    ]
    found = await ask(MockedUpstream({MODELS: listing(*LITELLM), "/v1/model/info": {"data": info}}))
    assert found.of("house") == Window(32_000, "provider", max_output=4_096)
    assert found.of("other") is None
    assert set(found.models) == {"house", "other"}


@pytest.mark.parametrize("told", [401, b"no JSON", httpx2.ConnectError("gone")])
async def test_a_litellm_that_does_not_tell_is_not_guessed_at(told: Any) -> None:
    assert (await ask(MockedUpstream({MODELS: listing(*LITELLM), "/v1/model/info": told}))).of("house") is None


# Gemini


async def test_gemini_tells_windows_beside_the_api_that_is_like_others() -> None:
    listed = [{"name": "models/gem", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536}, {"name": "models/x"}]
    entries = [{"id": name, "owned_by": "google"} for name in ("models/gem", "models/x")]
    upstream = MockedUpstream({MODELS: listing(*entries), "/v1beta/models?pageSize=1000": {"models": listed}})
    discovery = Discovery(upstream, "/v1beta/openai", 5.0)
    found = await discovery.listing([(b"authorization", b"Bearer abc")])
    assert found.of("gem") == found.of("models/gem") == Window(1_048_576, "provider", max_output=65_536)
    assert found.of("x") is None
    assert upstream.asked[-1][1][b"x-goog-api-key"] == b"abc"
    assert b"authorization" not in upstream.asked[-1][1]
    assert (await ask(upstream)).of("gem") is None  # Google's models, listed by somebody else.


# llama.cpp

ONE_GGUF = listing({"id": "model.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}})


async def test_llama_cpp_has_the_context_of_its_slot_whatever_model_is_asked_for() -> None:
    upstream = MockedUpstream({MODELS: ONE_GGUF, "/props": {"default_generation_settings": {"n_ctx": 8_192}}})
    found = await ask(upstream)
    assert found.of("model.gguf") == found.of("gpt-4o") == Window(8_192, "provider")


@pytest.mark.parametrize("props", [404, {"default_generation_settings": 5}, b"no JSON", httpx2.ConnectError("gone")])
async def test_a_llama_cpp_that_does_not_tell_its_slot_is_not_guessed_at(props: Any) -> None:
    found = await ask(MockedUpstream({MODELS: ONE_GGUF, "/props": props}))
    assert found.of("model.gguf") is None


async def test_a_llama_cpp_that_tells_its_slot_in_the_list_is_not_asked_again() -> None:
    upstream = MockedUpstream({MODELS: listing({"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx": 4_096}})})
    assert (await ask(upstream)).of("anything") == Window(4_096, "provider")
    assert upstream.paths == [MODELS]


async def test_a_llama_cpp_with_several_models_is_a_router() -> None:
    entries = {"id": "a", "owned_by": "llamacpp"}, {"id": "b", "owned_by": "llamacpp"}
    upstream = MockedUpstream({MODELS: listing(*entries)})
    assert (await ask(upstream)).of("a") is None
    assert upstream.paths == [MODELS]


# LM Studio


async def test_lm_studio_tells_what_a_model_is_loaded_with_before_what_it_could_be() -> None:
    entries = [{"id": name, "owned_by": "organization_owner"} for name in ("loaded", "not-loaded", "odd")]
    native = [
        {"id": "loaded", "state": "loaded", "loaded_context_length": 8_192, "max_context_length": 131_072},
        {"id": "not-loaded", "state": "not-loaded", "max_context_length": 131_072},
        {"id": "odd"},
    ]
    found = await ask(MockedUpstream({MODELS: listing(*entries), "/lm/api/v0/models": {"data": native}}), root="/lm")
    assert found.of("loaded") == Window(8_192, "provider")
    not_loaded = sure(found.of("not-loaded"))
    assert not_loaded.context == 131_072
    assert "not loaded" in str(not_loaded.note)
    assert found.of("odd") is None
    assert found.changes


# Ollama


def ollama(loaded: dict[str, int], shown: dict[str, dict[str, Any]], *names: str) -> MockedUpstream:
    entries = [{"id": name, "owned_by": "library", "created": 1} for name in (*loaded, *shown, *names)]
    running = [{"name": name, "context_length": context} for name, context in loaded.items()]

    def show(_: dict[bytes, bytes], body: bytes) -> Any:
        return shown.get(msgspec.json.decode(body)["model"], 404)

    return MockedUpstream({MODELS: listing(*entries), "/api/ps": {"models": running}, "/api/show": show})


async def test_a_model_that_ollama_has_loaded_has_what_it_was_loaded_with() -> None:
    found = await ask(ollama({"llama3:latest": 65_536}, {}))
    assert found.of("llama3") == Window(65_536, "provider")
    assert found.changes


@pytest.mark.parametrize(
    ("shown", "context", "note"),
    [
        ({"parameters": "stop x\nnum_ctx                        16384", "model_info": {}}, 16_384, "Modelfile"),
        ({"parameters": "num_ctx 9999999999999999999", "model_info": {}}, 4_096, "least default"),
        ({"parameters": "num_ctx 100000001", "model_info": {}}, 4_096, "least default"),
        ({"parameters": "num_ctx " + "9" * 5_000, "model_info": {}}, 4_096, "least default"),
        ({"parameters": "num_ctx \u0668\u0661\u0669\u0662", "model_info": {}}, 4_096, "least default"),
        ({"parameters": "stop x", "model_info": {"llama.context_length": 131_072}}, 4_096, "least default"),
        ({"model_info": {"tiny.context_length": 2_048, "general.name": 5}}, 2_048, "least default"),
        ({"remote_host": "https://x.example", "model_info": {"q.context_length": 262_144}}, 262_144, None),
        ({"remote_host": "https://x.example"}, 4_096, "least default"),
        ({}, 4_096, "least default"),
    ],
)
async def test_a_model_that_ollama_has_not_loaded_is_taken_for_what_it_would_get(
    shown: dict[str, Any], context: int, note: str | None
) -> None:
    window = sure((await ask(ollama({}, {"m:latest": shown}))).of("m"))
    assert window.context == context
    assert (note or "") in str(window.note)


async def test_a_model_that_ollama_unloaded_keeps_what_it_had() -> None:
    upstream = ollama({"m:latest": 65_536}, {}, "other:latest")
    discovery = Discovery(upstream, "", 5.0)
    await discovery.listing()
    upstream.answers["/api/ps"] = {"models": []}
    window = sure((await discovery.listing()).of("m"))
    assert window.context == 65_536
    assert upstream.paths.count("/api/show") == 1, "what other:latest is, is asked once"
    upstream.answers[MODELS] = listing({"id": "other:latest", "owned_by": "library", "created": 2})
    await discovery.listing()
    assert upstream.paths.count("/api/show") == 2, "and again when it changed"


@pytest.mark.parametrize("created", [[1], {"at": 1}, None, 1.5, "2026-01-01"])
async def test_an_odd_time_of_ollamas_does_not_take_the_other_models_with_it(created: Any) -> None:
    upstream = ollama({"m:latest": 65_536}, {})
    odd = {"id": "odd:latest", "owned_by": "library", "created": created}
    upstream.answers[MODELS] = listing({"id": "m:latest", "owned_by": "library", "created": 1}, odd)
    found = await ask(upstream)
    assert found.of("m") == Window(65_536, "provider")
    window = sure(found.of("odd"))
    assert window.context == 4_096


async def test_what_local_servers_tell_of_odd_names_and_sizes_is_left_out() -> None:
    long, entry = "x" * 301, {"id": "m", "owned_by": "organization_owner"}
    native = [
        {"id": long, "loaded_context_length": 8_192},
        {"id": "m", "loaded_context_length": 2**63, "max_context_length": 8_192},
    ]
    found = await ask(MockedUpstream({MODELS: listing(entry), "/api/v0/models": {"data": native}}))
    assert list(found.models) == ["m"]
    assert found.models["m"] is not None
    assert found.models["m"].context == 8_192
    upstream = ollama({}, {}, "m")
    upstream.answers["/api/ps"] = {"models": [{"name": name, "context_length": 8_192} for name in (long, ["m"])]}
    assert list((await ask(upstream)).models) == ["m"]
