"""The REST interface, route by route, and what is relayed without being read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lab.benchmarks.corpus.case import Answers, Case, Group, Step, after, body, case, chat, stored
from lab.benchmarks.corpus.cases.histories import HELLO, SYSTEM, TOOLS, conversation, growing, tool_turn
from lab.benchmarks.corpus.framing import CHAT, OWN_KEY, chunks_of, request
from lab.benchmarks.corpus.provider import refusal
from lab.benchmarks.corpus.replies import Reply, plain

LIST = "/context/conversations"
ROUTES = (
    ("GET", LIST), ("GET", f"{LIST}/a"), ("GET", f"{LIST}/a/summaries"), ("GET", f"{LIST}/a/summaries/chk_{'0' * 32}"),
    ("GET", f"{LIST}/a/coverage"), ("GET", f"{LIST}/a/usage"), ("GET", f"{LIST}/a/pins"), ("PUT", f"{LIST}/a/pins"),
    ("DELETE", f"{LIST}/a/pins"), ("POST", f"{LIST}/a/compact"), ("PATCH", f"{LIST}/a/summaries/chk_{'0' * 32}"),
    ("GET", "/context/search?q=order"), ("GET", "/context/models"), ("GET", "/context/calibration"),
    ("POST", "/context/plan"), ("POST", "/context/compact"), ("GET", "/context/tenant"),
    ("DELETE", f"{LIST}/a"), ("DELETE", "/context/tenant"),
    ("GET", "/livez"), ("GET", "/readyz"), ("GET", "/healthz"), ("GET", "/docs"), ("GET", "/ui"),
    ("GET", "/"), ("GET", "/context"), ("GET", "/context/nothing"), ("GET", "/favicon.ico"),
)  # fmt: skip
QUERIES = (
    "limit=1",
    "limit=0",
    "limit=101",
    "limit=x",
    "order=asc",
    "order=desc",
    "order=up",
    "after=a",
    "after=nobody",
    "nothing=1",
    "limit=1&order=asc&after=a",
)


def _slug(target: str) -> str:
    return "-".join(part for part in target.replace("?", "/").replace("=", "/").split("/") if part) or "root"


def _sent(method: str, target: str, *headers: str, key: str | None = OWN_KEY) -> bytes:
    bodies = {"POST": body(conversation(16)), "PUT": b'{"indexes":[0]}', "PATCH": b'{"text":"New."}'}
    return request(target, bodies.get(method), *headers, method=method, key=key)


def _routes() -> Iterator[Case]:
    for method, target in ROUTES:
        name = f"{method.lower()}-{_slug(target)[:60]}"
        others = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
        yield case(f"nobody-{name}", _sent(method, target), _sent(method, target, key=None))
        # As if it came through a proxy: without a key that is a stranger.
        yield case(f"stranger-{name}", _sent(method, target, "x-forwarded-for: 10.0.0.1", key=None))
        yield case(f"methods-{name}", *(_sent(other, target) for other in others if other != method))
    yield case(
        "other-keys",
        *(
            request("/context/tenant", None, f"{name}: k1", key=None)
            for name in ("api-key", "x-api-key", "x-goog-api-key")
        ),
        request("/context/tenant?key=k1", key=None),
        request("/context/tenant?api-version=1", key="k1"),
    )
    yield case(
        "two-keys",
        chat(HELLO, "x-api-key: k2", conversation_id="a"),
        stored(request(LIST, None, "x-api-key: k2")),
        request(LIST),
    )


def _full(name: str) -> tuple[Step | bytes, ...]:
    """Every answer about a conversation that was compacted."""
    below = f"{LIST}/{name}"
    listed = [
        request(f"{below}/{part}?{query}")
        for part in ("summaries", "usage")
        for query in ("limit=1", "order=asc", "limit=x")
    ]
    return (
        stored(request(below)), request(f"{below}/summaries"), request(f"{below}/coverage"), request(f"{below}/usage"),
        after(lambda answers: request(f"{below}/summaries/{_first_summary(answers)}")), *listed,
        request(f"{below}/summaries/chk_nothing"), request(f"{below}/pins"), request(below, method="HEAD"),
    )  # fmt: skip


def _first_summary(answers: Answers) -> str:
    """Id of the first summary in the first list that was read."""
    listed = next(
        answer.json for answer in answers if b'"object":"summary"' in answer.body and b'"list"' in answer.body
    )
    return str(listed["data"][0]["id"])


def _stories() -> Iterator[Case]:
    growth = growing(16, 26, every=5, model="gpt-4o-rest", conversation_id="caf\u00e9/7")
    encoded = "caf%C3%A9%2F7"
    yield case("read", *growth, *_full(encoded))
    yield case(
        "others-conversation",
        *growth,
        stored(request(f"{LIST}/{encoded}", key="sk-other")),
        *(request(f"{LIST}/{encoded}/{part}", key="sk-other") for part in ("summaries", "coverage", "usage", "pins")),
        request(f"{LIST}/{encoded}", key="sk-other", method="DELETE"),
        request(f"{LIST}/{encoded}"),
    )
    yield case(
        "listed",
        *(chat(HELLO, conversation_id=name) for name in "abc"),
        *(stored(request(f"{LIST}?{query}")) for query in QUERIES),
    )
    yield case(
        "deleted",
        *growth,
        stored(request(f"{LIST}/{encoded}", method="DELETE")),
        request(f"{LIST}/{encoded}"),
        request(LIST),
        *growing(26, 26, model="gpt-4o-rest", conversation_id="caf\u00e9/7"),
    )
    yield case(
        "erased",
        *growth,
        request("/context/calibration"),
        stored(request("/context/tenant", method="DELETE")),
        request(LIST),
        request("/context/search?q=order"),
    )
    words = (
        "order",
        "ORD-0001",
        "ord%200001",
        "parc",
        "rcel",
        "nothing",
        "",
        "%20",
        "x" * 201,
        "a+b+c+d+e+f+g+h+i+j+k+l+m+n+o+p+q",
        "caf%C3%A9",
        "%FF",
        "order&limit=1",
        "order&after=chk_x",
    )
    yield case(
        "searched",
        *growth[:1],
        *(stored(request(f"/context/search?q={word}")) for word in words),
        request("/context/search"),
    )
    yield case("pins", *_pinned())
    yield from _plans()
    yield from _forced()
    learnt = chat(conversation(3), model="gpt-4o-learnt")
    shown = stored(request("/context/calibration"))
    yield case(
        "calibration", learnt, shown, *(request(f"/context/calibration?{query}") for query in ("limit=0", "after=x"))
    )
    models = [chat(HELLO, model=name) for name in ("gpt-4o", "own-1", "gpt-4-small")]
    yield case(
        "models",
        *models,
        stored(request("/context/models")),
        *(request(f"/context/models?{query}") for query in QUERIES),
    )
    yield case("schema", request("/openapi.json"))


def _pinned() -> Iterator[Step | bytes]:
    pins = f"{LIST}/p/pins"
    yield from growing(3, 4, model="gpt-4o-pins", conversation_id="p")
    yield stored(request(pins, b'{"indexes":[4,0]}', method="PUT"))
    yield request(pins)
    yield from growing(18, 19, model="gpt-4o-pins", conversation_id="p")
    yield stored(request(pins))
    yield request(f"{LIST}/p/coverage")
    for sent in (
        "{}",
        '{"indexes":[-1]}',
        '{"indexes":"0"}',
        '{"indexes":[1.5]}',
        "{",
        '{"indexes":[0],"x":1}',
        '{"indexes":[0,0]}',
    ):
        yield request(pins, sent.encode(), method="PUT")
    yield request(pins, json.dumps({"indexes": list(range(101))}).encode(), method="PUT")
    yield request(pins, b'{"indexes":[10000000]}', method="PUT")
    yield request(f"{LIST}/nobody/pins", b'{"indexes":[0]}', method="PUT")
    yield request(pins, method="DELETE")
    yield request(pins)
    yield from growing(20, 20, model="gpt-4o-pins", conversation_id="p")


_BODIES: tuple[tuple[str, bytes], ...] = (
    ("short", body(HELLO)),
    ("long", body(conversation(18), conversation_id="x")),
    ("tools", body(conversation(13, tool_turn), tools=TOOLS)),
    ("stream", body(conversation(18), stream=True)),
    ("off", body(conversation(18), context={"compaction": False})),
    ("rolling", body(conversation(18), context={"preset": "rolling"})),
    ("window", body(conversation(26), context={"preset": "sliding-window"})),
    ("bad-option", body(HELLO, context={"presett": 1})),
    ("no-messages", b'{"model":"gpt-4o"}'),
    ("empty-messages", b'{"model":"gpt-4o","messages":[]}'),
    ("no-model", b'{"messages":[]}'),
    ("no-json", b"{"),
    ("array", b"[]"),
    ("empty", b""),
    ("huge-floor", body([{**SYSTEM, "content": "x y " * 6_000}, *HELLO])),
)


def _plans() -> Iterator[Case]:
    for route in ("plan", "compact"):
        for name, sent in _BODIES:
            # No model of its own: nothing is learnt of a plan.
            yield case(
                f"{route}-{name}",
                request(f"/context/{route}", sent),
                request(f"/context/{route}", sent, "x-context-preset: lightspeed", "x-context-conversation-id: h"),
            )
    failing = (refusal("No.", "401 Unauthorized"),) * 6
    yield case(
        "compact-failing",
        Step(request("/context/compact", body(conversation(18), model="gpt-4o-compact-failing")), summaries=failing),
    )
    yield case(
        "plan-after-summary",
        *growing(18, 18, model="gpt-4o-planned"),
        stored(request("/context/plan", body(conversation(19), model="gpt-4o-planned"))),
        *growing(19, 19, model="gpt-4o-planned"),
    )
    yield case(
        "compact-then-chat",
        request("/context/compact", body(conversation(18), model="gpt-4o-beside")),
        *growing(18, 19, model="gpt-4o-beside"),
    )


def _forced() -> Iterator[Case]:
    target = f"{LIST}/f/compact"
    for name, sent in (
        *_BODIES,
        ("focus", body(conversation(8), instructions="Every price.")),
        ("odd-focus", body(conversation(8), instructions=1)),
    ):
        model = f"gpt-4o-forced-{name}"
        told = sent.replace(b'"gpt-4o"', f'"{model}"'.encode())
        steps = chat(HELLO, model=model, conversation_id="f"), stored(request(target, told)), request(target, told)
        yield case(f"forced-{name}", *steps, *growing(18, 19, model=model, conversation_id="f"))
    yield case("forced-nobody", request(target, body(conversation(8))))
    yield case(
        "forced-twice",
        chat(HELLO, conversation_id="f"),
        *(stored(request(target, body(conversation(turns), model="gpt-4o-twice"))) for turns in (6, 6, 8, 12, 18)),
        stored(request(f"{LIST}/f/summaries")),
    )
    failing = (refusal("No.", "401 Unauthorized"),) * 6
    yield case(
        "forced-failing",
        chat(HELLO, conversation_id="f"),
        Step(request(target, body(conversation(8), model="gpt-4o-forced-fails")), summaries=failing, settles=True),
    )


_FORM = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.bin"\r\n\r\n\x00\xff\r\n--x--\r\n'
PATHS = (
    "/v1", "/v1/", "/v1/models", "/v1/models/gpt-4o", "/v1/models/org%2Fmodel", "/v1/files?after=a&limit=2",
    "/v1/unknown/a/b?x=%20&&y",
    "/v1/files/a/content", "/v1/a/../b", "/v1/a%2e%2e/b", "/v1//double", "/v1/%C3%A9?%C3%A9=\u00e9",
    "/v1/chat/completions/chatcmpl-1",
    "/V1/models",
    "/openai/deployments/x/chat/completions?api-version=1", "/v2/models", "/v1beta/models", "/v1?x=1", "/v1;a/b",
)  # fmt: skip


def _passed() -> Iterator[Case]:
    for number, target in enumerate(PATHS):
        lines = ("x-mine: 1", "accept-encoding: gzip")
        raw = [
            request("/x", None, *lines, method=method).replace(b"/x", target.encode("latin-1"), 1)
            for method in ("GET", "HEAD", "DELETE", "OPTIONS")
        ]
        yield case(f"path-{number}-{_slug(target).replace(chr(233), 'e').replace('%', '')[:50]}", *raw)
    for target in (
        "/v1/embeddings",
        "/v1/responses",
        "/v1/messages",
        "/v1/completions",
        "/v1/moderations",
        "/v1/responses/compact",
        "/v1/messages/count_tokens",
    ):
        sent = body(conversation(18))
        yield case(
            f"post-{_slug(target)}",
            request(target, sent),
            request(f"/c/mine{target}", sent),
            request(target, b"{"),
            request(target, b"", method="POST"),
        )
    for kind, sent in (
        ("multipart/form-data; boundary=x", _FORM),
        ("application/octet-stream", bytes(range(256)) * 9),
        ("text/plain", b"hello"),
    ):
        yield case(
            f"upload-{kind.partition(';')[0].replace('/', '-')}",
            request("/v1/files", sent, kind=kind),
            request("/v1/files", sent, kind=kind, method="PUT"),
        )
    head = request("/v1/files", None, "transfer-encoding: chunked", method="POST")
    yield case("upload-chunked", head + chunks_of(b"0123456789" * 30, 64))
    answers: dict[str, Reply] = {
        "binary": plain(bytes(range(256)), "content-disposition: attachment", kind="audio/mpeg"),
        "headers": plain(
            b"{}",
            "Access-Control-Allow-Origin: *",
            "strict-transport-security: max-age=1",
            "alt-svc: h3",
            "x-accel-redirect: /etc",
            "X-Mine: 1",
            "date: Thu, 01 Jan 2015 00:00:00 GMT",
            "server: x",
            "x-context-status: mine",
            "steno-hops: 0123456789abcdef",
        ),
        "compressed": plain(b"\x1f\x8b\x08\x00", "content-encoding: gzip"),
        "redirect": plain(b"", "location: /v1/elsewhere", status="307 Temporary Redirect"),
        "404": refusal("Unknown request URL.", "404 Not Found", kind="invalid_request_error"),
        "500": refusal("Broken.", "500 Internal Server Error"),
        "304": Reply(b"HTTP/1.1 304 Not Modified\r\netag: a\r\n\r\n"),
        "closed": Reply(b"", closes=True),
        "cut": Reply(b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhalf", closes=True),
        "stream": plain(
            b'event: response.created\ndata: {"type":"response.created"}\n\ndata: {}\n\n', kind="text/event-stream"
        ),
    }
    for name, answer in answers.items():
        yield case(
            f"answer-{name}",
            Step(request("/v1/files/a"), (answer,)),
            Step(request("/v1/responses", body(HELLO)), (answer,)),
        )
    yield case(
        "stranger",
        request("/v1/models", None, "x-forwarded-for: 10.0.0.1", key=None),
        request(CHAT, body(HELLO), "forwarded: for=10.0.0.1", key=None),
    )
    yield case(
        "no-key",
        request("/v1/models", key=None),
        request(CHAT, body(HELLO), key=None),
        request("/v1/files", b"x", key=None, kind=None),
    )


def _discovered() -> Iterator[Case]:
    yield case("start", Step(request("/context/models"), until=lambda answer: b'"listed":true' in answer.body))
    yield case(
        "hourly",
        *(chat(HELLO, model=model) for model in ("gpt-4o", "gpt-4-turbo", "nobody-knows")),
        stored(request("/context/models")),
    )


_OWN_MODELS: dict[str, Any] = {
    "models": [
        {
            "match": "own-1",
            "context_window": 9_000,
            "max_input_tokens": 8_000,
            "max_output_tokens": 500,
            "base_model": "gpt-4",
        },
        {"match": "*small*", "context_window": 2_000},
        {"match": "*", "context_window": 6_000},
    ],
    "prices": [
        {"match": "gpt-4o-rest*", "prompt": 2.5, "completion": 10, "cached": 1.25},
        {"match": "gpt-4o*", "prompt": 1, "completion": 2},
    ],
}
_DISCOVERING: dict[str, Any] = {"upstream": {"discover_windows": True}, "models": []}
_LOCKED: dict[str, Any] = {
    "server": {"allow_unauthenticated": False},
    "storage": {"url": "sqlite:///{folder}/steno.db"},
}

GROUPS = (
    Group("routes-of-rest", tuple(_routes())),
    Group("rest", tuple(_stories()), _OWN_MODELS),
    Group("passed", tuple(_passed())),
    Group("discovered", tuple(_discovered()), _DISCOVERING),
    Group("locked", tuple(_passed())[-2:] + tuple(_routes())[:9] + tuple(_stories())[:4], _OWN_MODELS | _LOCKED),
)
