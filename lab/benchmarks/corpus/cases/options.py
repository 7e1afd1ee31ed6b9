"""Steno's own request options, good and bad, and the names of conversations and upstreams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lab.benchmarks.corpus.case import FORK, Case, Group, Step, body, case, chat, raw, stored
from lab.benchmarks.corpus.cases.histories import HELLO, conversation, growing, plain_turn
from lab.benchmarks.corpus.framing import CHAT, request
from lab.benchmarks.corpus.provider import refusal

LONG = conversation(18)
CONVERSATIONS = "/context/conversations"

CONTEXTS: Mapping[str, Any] = {
    "empty": {},
    "off": {"compaction": False},
    "on": {"compaction": True},
    "compaction-null": {"compaction": None},
    "compaction-text": {"compaction": "off"},
    "compaction-number": {"compaction": 0},
    "instructions": {"instructions": "Look after every price,\n to the cent."},
    "instructions-empty": {"instructions": "  "},
    "instructions-number": {"instructions": 1},
    "instructions-long": {"instructions": "x" * 4_001},
    "pin": {"pin": [1, 4]},
    "pin-instruction": {"pin": [0]},
    "pin-last": {"pin": [len(LONG) - 1]},
    "pin-none": {"pin": []},
    "pin-outside": {"pin": [99]},
    "pin-negative": {"pin": [-1]},
    "pin-text": {"pin": ["1"]},
    "pin-true": {"pin": [True]},
    "pin-number": {"pin": 1},
    "pin-many": {"pin": [1] * 101},
    "preset-null": {"preset": None},
    "preset-unknown": {"preset": "libre"},
    "preset-number": {"preset": 1},
    "preset-and-trigger": {"preset": "rolling", "trigger": {"token_ratio": 0.9}},
    "trigger-ratio": {"trigger": {"token_ratio": 0.55}},
    "trigger-window": {"trigger": {"token_ratio": 0.6, "of": "window"}},
    "trigger-tokens": {"trigger": {"tokens": 5_000}},
    "trigger-remaining": {"trigger": {"remaining_tokens": 1_500}},
    "trigger-overflow": {"trigger": {"overflow": True}},
    "trigger-turns": {"trigger": {"turns": 5}},
    "trigger-messages": {"trigger": {"messages": 8}},
    "trigger-since": {"trigger": {"since_checkpoint_ratio": 0.6}},
    "trigger-any": {"trigger": {"any": [{"token_ratio": 0.99}, {"turns": 4, "tokens": 10}]}},
    "trigger-any-beside": {"trigger": {"any": [{"turns": 4}], "tokens": 10}},
    "trigger-any-empty": {"trigger": {"any": [{}]}},
    "trigger-empty": {"trigger": {}},
    "trigger-unknown": {"trigger": {"token_ration": 0.5}},
    "trigger-low": {"trigger": {"token_ratio": 0.3}},
    "trigger-text": {"trigger": "soon"},
    "trigger-wrong-type": {"trigger": {"tokens": "many"}},
    "trigger-negative": {"trigger": {"tokens": -1, "turns": 0}},
    "unknown-member": {"presett": "off"},
    "text": "off",
    "array": [],
    "false": False,
    "long": {"pin": [1] * 70_000},
}

MANAGEMENT: Mapping[str, Any] = {
    "threshold": [{"type": "compaction", "compact_threshold": 3_000}],
    "high": [{"type": "compaction", "compact_threshold": 100_000}],
    "two": [{"type": "compaction", "compact_threshold": 3_000}, {"type": "compaction", "compact_threshold": 9}],
    "other-type": [{"type": "clear_tool_uses"}],
    "no-threshold": [{"type": "compaction"}],
    "zero": [{"type": "compaction", "compact_threshold": 0}],
    "text": [{"type": "compaction", "compact_threshold": "3000"}],
    "null": None,
    "empty": [],
    "object": {"type": "compaction", "compact_threshold": 3_000},
    "huge": [{"type": "compaction", "compact_threshold": 10**30}],
}

HEADERS: Mapping[str, tuple[str, ...]] = {
    "compaction-off": ("x-context-compaction: off",),
    "compaction-upper": ("X-Context-Compaction: FALSE",),
    "compaction-zero": ("x-context-compaction: 0",),
    "compaction-on": ("x-context-compaction: on",),
    "compaction-no": ("x-context-compaction: no",),
    "compaction-empty": ("x-context-compaction:",),
    "preset": ("x-context-preset: rolling",),
    "preset-off": ("x-context-preset: off",),
    "preset-unknown": ("x-context-preset: libre",),
    "preset-empty": ("x-context-preset:",),
    "events-off": ("x-context-events: off",),
    "events-named": ("x-context-events: named",),
    "events-comment": ("x-context-events: comment",),
    "events-chunk": ("x-context-events: chunk",),
    "events-start": ("x-context-events: start",),
    "events-upper": ("x-context-events: OFF",),
    "unknown": ("x-context-anything: 1",),
    "patience": ("x-stainless-read-timeout: 600", "x-stainless-timeout: 600"),
    "several": ("x-context-conversation-id: several", "x-context-preset: lightspeed", "x-context-events: comment"),
}

NAMING_HEADERS = (
    "x-context-conversation-id", "x-conversation-id", "x-session-id", "x-session-affinity", "x-openwebui-chat-id",
    "x-litellm-session-id", "helicone-session-id", "x-opencode-session", "x-claude-code-session-id", "session-id",
    "session_id",
)  # fmt: skip
NAMES: Mapping[str, str] = {
    "spaces": "  order 4711 ",
    "encoded": "caf%C3%A9%2F7",
    "percent": "50%",
    "percent-encoded": "50%25",
    "empty": "",
    "blank": "%20",
    "control": "a%0Ab",
    "no-utf-8": "%FF",
    "long": "n" * 257,
    "longest": "n" * 256,
}
MEMBERS: Mapping[str, dict[str, Any]] = {
    "conversation-id": {"conversation_id": "caf\u00e9/7"},
    "conversation-id-null": {"conversation_id": None},
    "conversation-id-empty": {"conversation_id": ""},
    "conversation-id-number": {"conversation_id": 7},
    "conversation-id-control": {"conversation_id": "a\x00b"},
    "conversation-id-long": {"conversation_id": "\u00e9" * 257},
    "metadata-conversation": {"metadata": {"conversation_id": "m1", "session_id": "s1"}},
    "metadata-session": {"metadata": {"session_id": "s1"}},
    "metadata-number": {"metadata": {"session_id": 1}},
    "metadata-text": {"metadata": "s1"},
    "user": {"user": "u1", "prompt_cache_key": "k1"},
}


def _cases() -> Iterator[Case]:
    for name, context in CONTEXTS.items():
        model = f"gpt-4o-context-{name}"
        yield case(
            f"context-{name}", chat(HELLO, context=context), chat(LONG, model=model, context=context, stream=True)
        )
    for name, managed in MANAGEMENT.items():
        model = f"gpt-4o-management-{name}"
        yield case(f"management-{name}", chat(LONG, model=model, context_management=managed))
    for name, headers in HEADERS.items():
        model = f"gpt-4o-header-{name}"
        yield case(f"header-{name}", chat(HELLO, *headers), chat(LONG, *headers, model=model, stream=True))
    yield from _names()


def _names() -> Iterator[Case]:
    for header in NAMING_HEADERS:
        yield case(f"name-by-{header}", chat(HELLO, f"{header}: named-by-{header}"), stored(request(CONVERSATIONS)))
    for name, value in NAMES.items():
        named = [chat(HELLO, f"x-context-conversation-id: {value}"), chat(HELLO, f"x-session-id: {value}")]
        below = "".join("%20" if letter == " " else letter for letter in value)
        yield case(f"name-{name}", *named, chat(HELLO, target=f"/c/{below}{CHAT}"), stored(request(CONVERSATIONS)))
    for name, members in MEMBERS.items():
        yield case(f"name-member-{name}", chat(HELLO, **members), stored(request(CONVERSATIONS)))
    everything = [f"{header}: by-{header}" for header in reversed(NAMING_HEADERS)]
    members = {"conversation_id": "by-body", "metadata": {"conversation_id": "by-metadata"}}
    yield case(
        "name-order", *(chat(HELLO, *everything[: -cut or None], **members) for cut in range(len(everything) + 1))
    )
    yield case("name-twice", chat(HELLO, "x-session-id: one", "x-session-id: two"))
    yield case(
        "name-raw-bytes", request(CHAT, b'{"model":"gpt-4o","messages":[]}', b"x-context-conversation-id: caf\xe9")
    )
    yield case(
        "path-conversation", chat(HELLO, target="/c/my-chat/v1/chat/completions"), request("/c/my-chat/v1/models")
    )
    yield case("path-below-header", chat(HELLO, "x-conversation-id: header", target="/c/path/v1/chat/completions"))
    for target in (
        "/u/default",
        "/u/local",
        "/u/nobody",
        "/u/local/c/mine",
        "/c/mine/u/local",
        "/u/UPPER",
        "/u/",
        "/c/a/c/b",
    ):
        name = target.strip("/").replace("/", "-").lower()
        sent = chat(HELLO, target=f"{target}{CHAT}"), request(f"{target}/v1/models"), request(f"{target}/v2/x")
        yield case(f"path-{name}", *sent)
    yield case(
        "model-chooses",
        *(chat(HELLO, model=model) for model in ("llama-3", "meta/llama-3", "keyed-1", "LLAMA-3", "gpt-4o")),
    )
    yield case(
        "keyed-up",
        chat(HELLO, "x-mine: 1", "openai-beta: b", "x-api-key: k", model="keyed-1"),
        request("/u/keyed/v1/files?key=q"),
    )
    yield case(
        "alternating-roles", *growing(15, 27, model="llama-3-alternating", every=3, conversation_id="alternating")
    )
    yield case("recognised", *growing(1, 5), stored(request(CONVERSATIONS)), *growing(3, 3), chance=(FORK,))
    other = {"role": "assistant", "content": "No."}, {"role": "user", "content": "Then another question?"}
    fork = [*conversation(2), *other]
    yield case("forked", *growing(1, 6), chat(fork), stored(request(CONVERSATIONS)), chance=(FORK,))
    edited = [plain_turn(9)[0], *conversation(3, system=False)]
    yield case(
        "named-although-edited", *(chat(one, conversation_id="same") for one in (conversation(3), edited, HELLO))
    )
    yield case("options-of-a-bypassed-body", raw("{", "x-context-preset: libre"), raw('{"context":1}'))
    yield case("bad-option-and-refusal", Step(chat(HELLO, context={"pin": [0]}), (refusal("No."),)))


SETTINGS = {
    "upstreams": {
        "local": {
            "base_url": "{provider}/local/api",
            "models": ["llama-*"],
            "discover_windows": False,
            "alternating_roles": True,
        },
        "keyed": {
            "base_url": "{provider}/keyed",
            "models": ["keyed-*"],
            "discover_windows": False,
            "api_key_env": "CORPUS_KEY",
        },
    },
}
NAMED_BY_BODY = {
    "identity": {
        "use_user": True,
        "use_prompt_cache_key": True,
        "session_headers": ["x-mine"],
        "ignore": ["\\d\\d:\\d\\d"],
    },
    "events": {"body": False, "stream": "named"},
    "compaction": {"pinned_text": "Answer in German."},
    "calibration": {"ask_usage": False},
    "prices": [{"match": "gpt-4o*", "prompt": 2.5, "completion": 10, "cached": 1.25}],
}


def _other() -> Iterator[Case]:
    """Cases with other settings of what the client may see and of names."""
    yield case(
        "user", chat(HELLO, user="u1"), chat(HELLO, user="u1", prompt_cache_key="k1"), stored(request(CONVERSATIONS))
    )
    yield case(
        "session-header", chat(HELLO, "x-mine: a"), chat(HELLO, "x-session-id: b"), stored(request(CONVERSATIONS))
    )
    clocked = (
        [{"role": "system", "content": f"It is {hour}:00."}, *conversation(20, system=False)] for hour in (10, 11)
    )
    yield case("ignored-text", *(chat(one, model="gpt-4o-clocked") for one in clocked))
    for mode in ("chunk", "named", "comment", "off"):
        model = f"gpt-4o-bodiless-{mode}"
        steps = growing(16, 20, f"x-context-events: {mode}", model=model, stream=True, every=2)
        yield case(f"bodiless-{mode}", chat(HELLO, model=model), *steps, chat(HELLO, model=model, stream=True))
    steps = growing(14, 22, model="gpt-4o-priced", conversation_id="priced", every=2)
    yield case("priced", *steps, stored(request(f"{CONVERSATIONS}/priced/usage")))


def _disabled() -> Iterator[Case]:
    """Compaction switched off in the settings: a request cannot switch it on."""
    for name, context in (("bare", {}), ("preset", {"preset": "rolling"}), ("on", {"compaction": True})):
        yield case(name, chat(LONG, context=context), chat(LONG, context=context, stream=True))
    yield case("plan", request("/context/plan", body(LONG)), request("/context/compact", body(LONG)))


GROUPS = (
    Group("disabled", tuple(_disabled()), {"compaction": {"enabled": False}, "calibration": {"enabled": False}}),
    Group("options", tuple(_cases()), SETTINGS, {"CORPUS_KEY": "sk-operator"}),
    Group("settings", tuple(_other()), NAMED_BY_BODY),
)
