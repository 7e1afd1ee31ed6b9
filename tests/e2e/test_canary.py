"""Canaries: keys and messages that are found again wherever they have no business to be, on every path of failure.

One Steno of its own process, at log level debug, is led through all of them. What it logged, stored and answered, and
what it sent to other upstreams than a caller chose, is searched afterwards.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from app import errors
from app.http.credentials import CREDENTIALS
from tests.e2e import commands
from tests.e2e.histories import turns
from tests.e2e.raw import CHAT, Answer, connected, get, read_answer, request_bytes, send
from tests.e2e.scripted import LAST_CHUNK, ScriptedProvider, Step, answer, chunked, closed_port, stream_head

KEYS = {name: f"sk-canary-of-{name.decode()}" for name in sorted(CREDENTIALS)}
"""What the caller sends in each header that tells who calls or who pays."""
IN_QUERY = "canary-in-a-query"
QUERY = "&".join(f"{name}={IN_QUERY}" for name in ("key", "api_key", "access_token", "subscription-key"))
OPERATORS = "canary-of-the-operator"
SECRET = "canary-that-keys-the-digests"
PASSWORD = "canary-of-the-database"
SECRETS = (*KEYS.values(), IN_QUERY, OPERATORS, SECRET, PASSWORD)

SAID = "canarysaid"
"""Stands in messages that no summary is made of: it is nowhere afterwards."""
RETOLD = "canaryretold"
"""Stands in messages that are summarised: it is in summaries afterwards and nowhere else."""
MOST_CONNECTIONS = 20
HOLDS_TEXT = frozenset({("summary_chunks", "text"), ("summary_chunks", "user_words")})
"""Columns that are meant to hold what was said."""

NOTES = f"The user told the assistant about {RETOLD} and the assistant promised to look into the parcel. " * 3
ECHO = json.dumps({"error": {"message": f"You said {SAID} {RETOLD} with {' '.join(SECRETS)}", "code": "odd"}}).encode()
"""A provider that repeats everything: its words are for the caller and for nobody else."""


def completion(text: str = "Yes.", usage: Mapping[str, int] | None = None) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = usage or {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    said = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    return json.dumps(said).encode()


def frames(*data: bytes) -> tuple[bytes, ...]:
    return (stream_head(), *(chunked(b"data: " + piece + b"\n\n") for piece in data))


FIRST_CHUNK = json.dumps(
    {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": f"{SAID}"}}]}
).encode()

FAULTS: Mapping[str, tuple[Step, ...]] = {
    "refuses the key": (answer(ECHO, status=b"401 Unauthorized"),),
    "refuses the request": (answer(ECHO, status=b"400 Bad Request"),),
    "has no time": (answer(ECHO, b"retry-after: 9", status=b"429 Too Many Requests"),),
    "fails": (answer(ECHO, status=b"500 Internal Server Error"),),
    "fails in HTML": (answer(ECHO, status=b"502 Bad Gateway", kind=b"text/html"),),
    "says an error with 200": (answer(ECHO),),
    "says something else": (answer(SAID.encode(), kind=b"text/plain"),),
    "answers no HTTP": (f"{SAID} {' '.join(SECRETS)}\r\n\r\n".encode(), "close"),
    "closes": ("close",),
    "resets": ("reset",),
    "is slow": ("hang",),
    "breaks off": (answer(completion(SAID))[:-20], "close"),
    "is compressed": (answer(ECHO, b"content-encoding: gzip"),),
    "redirects": (answer(ECHO, f"location: http://127.0.0.1:1/{IN_QUERY}".encode(), status=b"302 Found"),),
    "breaks a stream off": (*frames(FIRST_CHUNK), "close"),
    "streams an error": (*frames(FIRST_CHUNK, ECHO), LAST_CHUNK),
    "streams an error first": (*frames(ECHO), LAST_CHUNK),
    "streams garbage": (*frames(SAID.encode(), b"{", b'{"choices":1}', b"\xff"), LAST_CHUNK),
}


@dataclass
class Run:
    """Steno, its providers, and everything that came back."""

    steno: commands.Serving
    default: ScriptedProvider
    other: ScriptedProvider
    answers: dict[str, Answer] = field(default_factory=dict)
    """By what was asked; where the answer broke off there is none."""
    told: int = 0

    def ask(self, what: str, body: bytes | None, *headers: bytes, target: str = CHAT, method: str = "POST") -> None:
        self.keep(what, request_bytes(body, *everybody(), *headers, method=method, target=target, usual=False))

    def keep(self, what: str, request: bytes) -> None:
        assert what not in self.answers
        with suppress(HTTPException, ConnectionError):
            self.answers[what] = send(self.steno.url, request, 60.0)

    def long(self, **members: Any) -> bytes:
        """A history that has to be compacted, and like no other."""
        self.told += 1
        history = [dict(said, content=f"{said['content']} {RETOLD}") for said in turns(15, first=100 * self.told)]
        return json.dumps({"model": "gpt-4o", "messages": history, **members}).encode()

    def code(self, what: str) -> str:
        """Of our own error, in the answer or in a stream that had begun."""
        body = self.answers[what].body
        return body.partition(b'"code":"')[2].partition(b'"')[0].decode()


def everybody() -> list[bytes]:
    """All keys at once."""
    return [b"content-type: application/json", *(b"%b: %b" % (name, key.encode()) for name, key in KEYS.items())]


def short(said: str = SAID, **members: Any) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": said}], **members}).encode()


# Every error of ours, by its code


def _slow_body(run: Run, what: str) -> None:
    with connected(run.steno.url, 60.0) as connection:
        request = request_bytes(short(), *everybody(), usual=False)
        connection.sendall(request[:-10])
        run.answers[what] = read_answer(connection)


def _overloaded(run: Run, what: str) -> None:
    """By five bodies, where there is room for four of the largest."""
    begun = request_bytes(short(SAID * 14_000), *everybody(), usual=False)[:-10]
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(run.steno.url, 60.0)) for _ in range(5)]
        for connection in connections:
            connection.sendall(begun)
        run.answers[what] = min(map(read_answer, reversed(connections)), key=lambda a: a.status != 503)


def _crowded(run: Run, what: str) -> None:
    with ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS):
            busy = stack.enter_context(connected(run.steno.url, 60.0))
            busy.sendall(request_bytes(short(), *everybody(), b"expect: 100-continue", usual=False)[:-10])
            assert busy.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        run.answers[what] = read_answer(stack.enter_context(connected(run.steno.url, 60.0)))
    commands.until(lambda: get(run.steno.url, "/livez").status == 200)


def _as_stranger(*headers: bytes, host: bytes = b"steno.test") -> Callable[[Run, str], None]:
    request = request_bytes(short(), *headers, usual=False).replace(b"steno.test", host)
    return lambda run, what: run.keep(what, request)


def _unreadable_answer(run: Run, what: str) -> None:
    run.default.then(*FAULTS["is compressed"])
    run.ask(what, run.long(stream=True), b"x-context-events: comment")


def _faulty(fault: str) -> Callable[[Run, str], None]:
    def ask(run: Run, what: str) -> None:
        run.default.then(*FAULTS[fault])
        run.ask(what, short())

    return ask


def _asking(target: str = CHAT, body: bytes | None = None, *headers: bytes) -> Callable[[Run, str], None]:
    method = "GET" if body is None else "POST"
    return lambda run, what: run.ask(what, body, *headers, target=f"{target}?key={IN_QUERY}", method=method)


WAYS: Mapping[type[errors.StenoError], Callable[[Run, str], None]] = {
    errors.BodyTooLarge: _asking(CHAT, short(SAID * 20_000)),
    errors.RequestTimedOut: _slow_body,
    errors.TooManyBytesInFlight: _overloaded,
    errors.HeadersTooLarge: _asking(CHAT, short(), *(b"x-%d: %b" % (n, SAID.encode()) for n in range(100))),
    errors.BadTarget: _asking("/v1/a/../b", short()),
    errors.HostNotAllowed: _as_stranger(*everybody(), host=b"evil.example"),
    errors.OriginNotAllowed: _asking(CHAT, short(), b"origin: https://evil.example"),
    errors.UnsupportedMediaType: _as_stranger(f"content-type: text/plain;a={SAID}".encode()),
    errors.MissingCredentials: _as_stranger(b"content-type: application/json"),
    errors.InvalidCredentials: lambda run, what: None,  # noqa: ARG005 - of a Steno that is told names by a proxy
    errors.MethodNotAllowed: lambda run, what: run.ask(what, None, target="/context/models", method="DELETE"),
    errors.TooManyConnections: _crowded,
    errors.WebSocketNotSpoken: _asking("/v1/responses", None, b"connection: upgrade", b"upgrade: websocket"),
    errors.UnknownPath: _asking("/context/nothing"),
    errors.UnknownUpstream: _asking("/u/nobody/v1/chat/completions", short()),
    errors.FormatNotSpoken: _asking("/u/gone/v1/messages", short()),
    errors.ConversationNotFound: _asking("/context/conversations/none"),
    errors.SummaryNotFound: _asking("/context/conversations/known/summaries/none"),
    errors.MessagesNotKept: _asking("/context/conversations/known/messages"),
    errors.InvalidRequest: _asking(CHAT, short(context={"pin": [7]})),
    errors.StorageUnavailable: lambda run, what: None,  # noqa: ARG005 - of the Steno whose database is away
    errors.LoopDetected: _asking(CHAT, short(), b"steno-hops: " + b", ".join(b"%016x" % n for n in range(40))),
    errors.UpstreamUnreachable: _asking("/u/gone/v1/chat/completions", short()),
    errors.UpstreamTimedOut: _faulty("is slow"),
    errors.UpstreamDisconnected: _faulty("closes"),
    errors.UpstreamUnreadable: _unreadable_answer,
}
"""How each error is brought about: a new one needs a way, too."""


def every_error() -> set[type[errors.StenoError]]:
    found: set[type[errors.StenoError]] = set()
    todo = [errors.StenoError]
    while todo:
        kinds = todo.pop().__subclasses__()
        found |= {kind for kind in kinds if kind.__module__ == errors.__name__ and not kind.__name__.startswith("_")}
        todo += kinds
    return found


# The run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("canary")
    with ScriptedProvider((answer(completion()),)) as default, ScriptedProvider((answer(completion(NOTES)),)) as other:
        steno = _started(folder, default, other, f"sqlite:///{folder}/steno.db")
        try:
            yield _lived(Run(steno, default, other))
        finally:
            steno.kill()


def _started(
    folder: Path, default: ScriptedProvider, other: ScriptedProvider, database: str, **sections: Any
) -> commands.Serving:
    settings = {
        "log": {"level": "debug"},
        "server": {"allow_unauthenticated": False},
        "upstream": {"base_url": f"{default.url}/v1", "discover_windows": False, "first_byte_seconds": 2.0},
        "upstreams": {
            "other": {"base_url": f"{other.url}/v1", "api_key_env": "OTHERS_KEY", "models": ["llama-*"]},
            "gone": {
                "base_url": f"http://127.0.0.1:{closed_port()}/v1",
                "discover_windows": False,
                "formats": ["chat_completions"],
            },
        },
        "models": [{"match": "*", "context_window": 8_000}],
        "summary": {"model": "llama-s", "upstream": "other", "timeout_seconds": 2.0},
        "compaction": {"wait_seconds": 10.0},
        "limits": {
            "body_bytes": 150_000,
            "connections": MOST_CONNECTIONS,
        },
        **sections,
    }
    (folder / "steno.yaml").write_text(json.dumps(settings))
    return commands.serve(
        ["--config", "steno.yaml"],
        folder,
        module="tests.e2e.broken",
        OTHERS_KEY=OPERATORS,
        STENO_SECRET=SECRET,
        DATABASE_URL=database,
    )


def _lived(run: Run) -> Run:
    run.ask("a conversation", short("Hello."), b"x-conversation-id: known")
    run.ask("a compaction", run.long(conversation_id="retold"))
    run.ask("the other upstream", short(model="llama-3"))
    for named, body in {"compaction": run.long(), "body": b"{", "model of the other": short(model="llama-3")}.items():
        run.ask(f"a {named} with keys in the query", body, target=f"{CHAT}?{QUERY}")
    run.ask("a path with keys in the query", b"{}", target=f"/u/nowhere/v1/embeddings?{QUERY}")
    for fault in ("refuses the key", "fails"):
        run.other.then(*FAULTS[fault])
        run.ask(f"the other upstream that {fault}", short(model="llama-3"))
    for kind, way in WAYS.items():
        way(run, kind.__name__)
    for name, body in {"nothing": b"", "no JSON": SAID.encode(), "no UTF-8": b'{"a":"\xff' + SAID.encode()}.items():
        run.ask(f"a body with {name}", body)
        run.ask(f"a body with {name} to compact", body, target="/context/compact")
    for fault, steps in FAULTS.items():
        for streamed in (False, True) if "hang" not in steps else ():  # That takes its time, and was done above.
            run.default.then(*steps)
            run.ask(f"a provider that {fault}, streamed: {streamed}", short(stream=streamed))
        run.default.script.clear()
    run.ask("our own failure", short(f"EXPLODE {SAID}"))
    run.ask("our own failure over REST", short(f"EXPLODE {SAID}"), target="/context/compact")
    _summarise_badly(run)
    _read_back(run)
    _refuse_statements(run)
    return run


def _summarise_badly(run: Run) -> None:
    usual = run.other.default
    refusal = answer(completion(f"I'm sorry, but I cannot repeat {SAID} or {OPERATORS}."))
    for fault, steps in {**FAULTS, "will not": (refusal,)}.items():
        if fault not in ("resets", "fails in HTML", "says something else", "redirects", "streams an error first"):
            run.other.default = steps
            run.ask(f"a summariser that {fault}", run.long())
            run.other.default = usual
            # A success in between: three failures in a row, and nobody is asked for a while.
            run.ask(f"a summariser after one that {fault}", run.long())


def _read_back(run: Run) -> None:
    run.ask("compaction over REST", run.long(), target="/context/compact")
    run.ask("a plan", run.long(), target="/context/plan")
    one = "/context/conversations/retold"
    for target in (
        *(one, f"{one}/summaries", f"{one}/coverage", f"{one}/usage", f"{one}/pins"),
        *("/context/conversations", "/context/models", "/context/calibration", "/context/tenant"),
        *(f"/context/search?q={RETOLD}", "/openapi.json", "/healthz", "/readyz"),
    ):
        run.ask(target, None, target=target, method="GET")


def _refuse_statements(run: Run) -> None:
    """The database's own errors hold the statement with all that was to be stored."""
    with sqlite3.connect(run.steno.folder / "steno.db") as database:
        for table in ("summary_chunks", "conversations"):
            database.execute(f"create trigger no_{table} before insert on {table} begin select raise(abort, 'no'); end")
    run.ask("a database that refuses", run.long(conversation_id="refused"))
    with sqlite3.connect(run.steno.folder / "steno.db") as database:
        for table in ("summary_chunks", "conversations"):
            database.execute(f"drop trigger no_{table}")


RETELLS = (
    "a compaction",
    "compaction over REST",
    "a plan",
    f"/context/search?q={RETOLD}",
    "/context/conversations/retold/summaries",
)
"""Where a caller is shown what was said, because it was asked for."""


def found(text: str | bytes, canaries: tuple[str, ...] = SECRETS) -> list[str]:
    raw = text.encode() if isinstance(text, str) else text
    return [canary for canary in canaries if canary.encode() in raw]


OF_OTHERS = errors.StorageUnavailable, errors.InvalidCredentials
"""Errors that this Steno cannot have."""


def test_there_is_a_way_to_each_error() -> None:
    assert set(WAYS) == every_error()


def test_each_error_was_brought_about(run: Run) -> None:
    codes = {kind: run.code(kind.__name__) for kind in WAYS if kind not in OF_OTHERS}
    assert codes == {kind: kind.code for kind in codes}


def test_every_way_of_failing_was_met(run: Run) -> None:
    """Else the searches below find nothing because nothing happened."""
    events = {line["event"] for line in run.steno.log}
    assert {"compacted", "compaction failed", "summariser fails", "provider refused"} <= events
    reasons = {line.get("reason") for line in run.steno.log if line["event"] == "compaction failed"}
    assert len(reasons) >= 6, reasons
    assert any("exception" in line for line in run.steno.log)
    assert [what for what in RETELLS if RETOLD in run.answers[what].body.decode()] == [
        what for what in RETELLS if what not in ("a compaction", "a plan")
    ]


def test_no_key_and_no_message_is_logged(run: Run) -> None:
    for name in ("stdout", "stderr"):
        logged = (run.steno.folder / name).read_text()
        hits = [line for line in logged.splitlines() if found(line, (*SECRETS, SAID, RETOLD))]
        assert hits == []


def test_no_key_is_stored_and_messages_only_as_summaries(run: Run) -> None:
    for path in run.steno.folder.glob("steno.db*"):
        assert found(path.read_bytes(), (*SECRETS, SAID)) == [], path.name
    assert holding(run.steno.folder / "steno.db", RETOLD) == HOLDS_TEXT


def holding(path: Path, canary: str) -> set[tuple[str, str]]:
    """The tables and columns in which it stands."""
    with sqlite3.connect(path) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        assert {"summary_chunks", "histories"} <= set(tables)
        return {
            (table, column)
            for table in tables
            for row in database.execute(f'select * from "{table}"')  # noqa: S608
            for (column, *_), value in zip(database.execute(f'select * from "{table}"').description, row, strict=True)  # noqa: S608
            if canary in str(value)
        }


def test_a_history_is_kept_where_it_belongs_and_no_key(tmp_path: Path) -> None:
    """Also where the database refuses them, and quotes what it refused."""
    path = tmp_path / "steno.db"
    with ScriptedProvider((answer(completion()),)) as default, ScriptedProvider((answer(completion(NOTES)),)) as other:
        steno = _started(tmp_path, default, other, f"sqlite:///{path}", storage={"messages": True})
        try:
            run = Run(steno, default, other)
            run.ask("a conversation", short(), b"x-conversation-id: known")
            target = "/context/conversations/known/messages"
            read = request_bytes(None, *everybody(), method="GET", target=target, usual=False)
            commands.until(lambda: send(steno.url, read, 60.0).json.get("data"))
            with sqlite3.connect(path) as database:
                database.execute("create trigger no before insert on histories begin select raise(abort, 'no'); end")
            run.ask("a refused one", short(f"{SAID} again"), b"x-conversation-id: refused")
            commands.until(lambda: any(line["event"] == "history not stored" for line in steno.log))
            assert [
                line for line in (tmp_path / "stdout").read_text().splitlines() if found(line, (*SECRETS, SAID))
            ] == []
            assert holding(path, SAID) == {("histories", "title")}
            assert found(path.read_bytes()) == []
        finally:
            steno.kill()


def test_no_answer_of_ours_holds_a_key_or_what_was_not_asked_for(run: Run) -> None:
    for what, answered in run.answers.items():
        headers = [header for header in answered.headers if header[0].startswith("x-context-")]
        assert found(repr(headers), (*SECRETS, SAID, RETOLD)) == [], what
        if what.startswith(("a provider that", "the other upstream", "a model of the other")):
            continue  # The provider's words.
        assert found(answered.body, (*SECRETS, SAID)) == [], what
        if what not in RETELLS:
            assert found(answered.body, (RETOLD,)) == [], what


def test_no_key_reaches_an_upstream_that_it_is_not_meant_for(run: Run) -> None:
    assert len(run.other.requests) > 10
    for received in run.other.requests:
        assert found(received.head) == [OPERATORS]
    for received in run.default.requests:
        assert found(received.head, (OPERATORS, SECRET, PASSWORD)) == []


# Starts that fail, and what the doctor says


def test_a_database_that_is_away_tells_no_password(tmp_path: Path) -> None:
    away = f"postgresql://steno:{PASSWORD}@127.0.0.1:{closed_port()}/steno"
    with ScriptedProvider((answer(completion()),)) as default, ScriptedProvider((answer(completion(NOTES)),)) as other:
        steno = _started(tmp_path, default, other, away)
        try:
            run = Run(steno, default, other)
            run.ask("a compaction", run.long())
            run.ask("a list", None, target="/context/conversations", method="GET")
            run.ask("ready", None, target="/readyz", method="GET")
            assert run.answers["a compaction"].status == 200
            assert run.code("a list") == errors.StorageUnavailable.code
            logged = (tmp_path / "stdout").read_text() + (tmp_path / "stderr").read_text()
            assert "storage" in logged
            assert found(logged + repr(run.answers), (*SECRETS, SAID)) == []
            assert found(logged, (RETOLD,)) == []
        finally:
            steno.kill()
