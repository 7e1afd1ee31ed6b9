"""Poisoning: whatever one tenant does, what another one gets is what it would get if the first had never come.

Each attack runs against a Steno and a provider of its own; afterwards the victim's requests are answered, and compared
with those of a victim before whom nobody came: what it was told, and every byte that the provider was sent for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from lab.simulator import Simulator
from lab.simulator.log import Record
from tests.e2e.conftest import TABLES
from tests.e2e.histories import MODEL, chat, long_history, turns, used
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import WINDOW, StartSteno, Steno

ATTACKER, VICTIM = "sk-attacker", "sk-victim"
SHARED_ID = b"x-context-conversation-id: shared"
HISTORY = long_history()
"""What both talk about, to the byte."""
PICTURE = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAABAAAAAQACAYAAAB/HSuD"},
}
TOLD = ("x-context-status", "x-context-reason", "x-context-actions", "x-context-window", "x-context-tokens-before")
SAID = ("status", "reason", "actions", "tokens")


@dataclass(slots=True)
class Stage:
    """A Steno before a provider."""

    steno: Steno
    simulator: Simulator

    def ask(self, key: str, body: bytes | None, *headers: bytes, target: str = "", method: str = "POST") -> Answer:
        usual = (b"content-type: application/json", b"authorization: Bearer " + key.encode())
        target = target or "/v1/chat/completions"
        return send(
            self.steno.url, request_bytes(body, *usual, *headers, method=method, target=target, usual=False), 60.0
        )

    def attack(self, *messages: Any, **members: Any) -> Answer:
        return self.ask(ATTACKER, chat([*messages], **members), SHARED_ID)

    def when_attacked(self, times: int, kind: str = "chat", **fault: Any) -> None:
        """How the provider answers the attacker, so many times."""
        self.simulator.when(lambda record: record.kind == kind and _is_of(record, ATTACKER), times=times, **fault)


USUAL: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    run: Callable[[Stage], object]
    settings: dict[str, Any] = field(default_factory=lambda: USUAL)


def _is_of(record: Record, key: str) -> bool:
    return record.header("authorization") == f"Bearer {key}"


# What the victim does, and what becomes of it


def outcome(stage: Stage) -> list[Any]:
    seen: list[Any] = []
    requests: Sequence[tuple[bytes, tuple[bytes, ...]]] = (
        (chat(), ()),
        (chat(HISTORY), (SHARED_ID,)),
        (chat(turns(16), stream=True), ()),
        (chat(turns(17), stream=True), ()),
        (chat([{"role": "user", "content": [PICTURE, {"type": "text", "text": "What is it?"}]}]), ()),
    )
    for body, headers in requests:
        answered = stage.ask(VICTIM, body, *headers)
        context = answered.json["context"] if answered.body.startswith(b"{") else {}
        told = [answered.header(name) for name in TOLD]
        seen.append((answered.status, told, {name: context.get(name) for name in SAID}, context.get("messages")))
    for target in ("/context/models", "/context/search?q=customer", "/context/conversations", "/context/calibration"):
        entries = stage.ask(VICTIM, None, target=target, method="GET").json["data"]
        shown = [{name: entry[name] for name in LISTED if name in entry} for entry in entries]
        seen.append(sorted(shown, key=json.dumps))
    seen.append([record.body for record in stage.simulator.log if record.kind != "other" and _is_of(record, VICTIM)])
    return seen


LISTED = ("model", "context_window", "source", "listed", "text", "turns", "requests", "ratio", "offset")


# What the attacker does


def overflow(limit: int, prompt: int) -> dict[str, Any]:
    said = f"This model's maximum context length is {limit} tokens. However, your messages resulted in {prompt} tokens."
    return {"message": said, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"}


def is_refused(stage: Stage) -> None:
    """By its own account, with a limit below the victim's prompts; then answered, so that it counts."""
    stage.attack({"role": "user", "content": "Hello."})
    stage.when_attacked(1, status=400, error=overflow(4_100, 6_400))
    stage.attack(*turns(12))
    assert stage.ask(ATTACKER, chat()).header("x-context-window") == "4100", "for itself it is"


def is_quoted(stage: Stage) -> None:
    """With a number that only its spelling hides."""
    stage.attack({"role": "user", "content": "Hello."})
    written = "the maximum context length is 00005000 tokens, prompt too long"
    error = {"message": f"Invalid content: {written}", "type": "invalid_request_error"}
    stage.when_attacked(1, status=400, error=error)
    stage.attack(*turns(12), {"role": "user", "content": written})
    assert stage.ask(ATTACKER, chat()).header("x-context-window") != "5000", "not even for itself"


def fills_the_window(stage: Stage) -> None:
    stage.when_attacked(
        1,
        finish_reason="model_context_window_exceeded",
        usage={"prompt_tokens": 4_000, "completion_tokens": 200, "total_tokens": 4_200},
    )
    stage.attack(*turns(8))


def is_billed(times: float) -> Callable[[Stage], None]:
    def run(stage: Stage) -> None:
        """Prompts written to be counted wrongly."""
        for number in range(5, 13):
            prompt = int(times * 410 * number)
            usage = {"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1}
            stage.simulator.next_chat(usage=usage)
            stage.attack(*turns(number, first=number), context={"compaction": False})
        lines = stage.ask(ATTACKER, None, target="/context/calibration", method="GET").json["data"]
        assert times < 1.0 or any(line["ratio"] > 2.0 for line in lines), "for itself it works"

    return run


def is_billed_for_pictures(stage: Stage) -> None:
    for number in range(4):
        stage.attack(*turns(2 + number))
    stage.when_attacked(4, usage={"prompt_tokens": 9_000, "completion_tokens": 1, "total_tokens": 9_001})
    for number in range(4):
        stage.attack({"role": "user", "content": [PICTURE, {"type": "text", "text": f"What is it, {number}?"}]})


def is_refused_the_usage(stage: Stage) -> None:
    refusal = json.dumps({"error": {"message": "A transcript must not say stream_options", "type": "invalid"}}).encode()
    stage.simulator.when(
        lambda record: _is_of(record, ATTACKER) and b"stream_options" in record.body, status=400, body=refusal
    )
    for number in range(3):
        stage.attack(*turns(16 + number), stream=True)


def wants_no_usage(stage: Stage) -> None:
    for number in range(3):
        stage.attack(*turns(3 + number), stream=True, stream_options={"include_usage": False})


def breaks_the_summariser(stage: Stage) -> None:
    stage.when_attacked(100, "summary", status=500, retry_after=60)
    for number in range(3):
        stage.attack(*turns(16, first=100 * number))


def is_quoted_by_the_summariser(stage: Stage) -> None:
    said = "It says 'use max_completion_tokens, not stream_options, not reasoning_effort', which I must not read."
    stage.when_attacked(9, "summary", status=400, error={"message": said, "type": "invalid_request_error"})
    for number in range(2):
        stage.attack(*turns(16, first=1_000 + 100 * number))


def fails_with_the_same_history(stage: Stage) -> None:
    stage.when_attacked(
        4, "summary", status=403, error={"message": "Not with this account.", "type": "permission_error"}
    )
    for _ in range(4):
        stage.attack(*HISTORY)


def summarises_the_same_history(stage: Stage) -> None:
    stage.when_attacked(9, "summary", words=120, text="Everything was paid to the attacker.")
    stage.attack(*HISTORY)
    stage.attack(*HISTORY, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"})


def takes_the_id(stage: Stage) -> None:
    stage.attack(*turns(18, first=500))
    stage.ask(ATTACKER, b'{"pins":[0,1,2]}', target="/context/conversations/shared/pins", method="PUT")
    stage.ask(ATTACKER, b"{}", target="/context/conversations/shared/compact")
    stage.ask(ATTACKER, None, target="/context/conversations/shared", method="DELETE")
    stage.attack(*HISTORY)


def lists_its_models(stage: Stage) -> None:
    stage.attack({"role": "user", "content": "Hello."})
    stage.ask(ATTACKER, None, target="/context/models", method="GET")


def makes_up_models(stage: Stage) -> None:
    for number in range(8):
        body = {"model": f"made-up-{number}", "messages": [{"role": "user", "content": "Hello."}]}
        stage.ask(ATTACKER, json.dumps(body).encode())


def fills_the_memory(stage: Stage) -> None:
    for number in range(3):
        stage.attack(*({"role": "user", "content": f"{number}.{each}"} for each in range(300)))


def masks_results(stage: Stage) -> None:
    for number in range(2):
        stage.attack(
            *turns(9, first=number),
            *used("c", "all is well " * 900),
            {"role": "assistant", "content": "All is well."},
            {"role": "user", "content": "Sure?"},
        )


UNSET: dict[str, Any] = {"models": []}
"""The registry's 128,000, which a refusal may lower to whatever it tells."""
KEYED: dict[str, Any] = {"upstream": {"discover_windows": True}, "models": [{"match": MODEL, "context_window": WINDOW}]}
ATTACKS = (  # What stops the attacker itself comes last.
    Attack("a list of models shown to its key", lists_its_models, KEYED),
    Attack("a limit in its own words with leading zeros", is_quoted, UNSET),
    Attack("models with made up names", makes_up_models, UNSET),
    Attack("a refusal's limit, over the bundled window", is_refused, UNSET),
    Attack("an answer that fills the window", fills_the_window, UNSET),
    Attack("a refusal's limit, over the configured window", is_refused),
    Attack("five times the tokens", is_billed(5.0)),
    Attack("pictures that cost more", is_billed_for_pictures),
    Attack("streams that want no usage", wants_no_usage),
    Attack("a refusal that quotes stream_options", is_refused_the_usage),
    Attack("summaries of the same history", summarises_the_same_history),
    Attack("the same conversation id, pinned, compacted and deleted", takes_the_id),
    Attack("tool results that are masked", masks_results),
    Attack("a memory full of its messages", fills_the_memory),
    Attack("0.6 times the tokens", is_billed(0.6)),
    Attack("a summariser that quotes it", is_quoted_by_the_summariser),
    Attack("compactions of the same history that fail", fails_with_the_same_history),
    Attack("a summariser that fails for it", breaks_the_summariser),
)
RUNS = [(settings, [each for each in ATTACKS if each.settings is settings]) for settings in (KEYED, UNSET, USUAL)]
"""All that need the same settings, in turn."""


@pytest.fixture
def stage(start_steno: StartSteno) -> Iterator[Callable[[dict[str, Any]], Stage]]:
    servers = []

    def set_up(settings: dict[str, Any]) -> Stage:
        simulator = Simulator(window=WINDOW, tables=TABLES)
        if settings is KEYED:  # The list is shown to the attacker's key alone.
            shown = json.dumps({"object": "list", "data": [{"id": "secret-model", "object": "model"}]}).encode()
            simulator.when(lambda record: record.kind == "other" and _is_of(record, ATTACKER), body=shown)
            simulator.when(lambda record: record.kind == "other", status=401)
        servers.append(simulator.serve())
        return Stage(start_steno(servers[-1].url, **settings), simulator)

    yield set_up
    for server in servers:
        server.stop()


@pytest.mark.parametrize(("settings", "attacks"), RUNS)
def test_what_one_tenant_does_changes_nothing_for_another(
    stage: Callable[[dict[str, Any]], Stage], settings: dict[str, Any], attacks: Sequence[Attack]
) -> None:
    undisturbed, attacked = stage(settings), stage(settings)
    for attack in attacks:
        attack.run(attacked)
    assert outcome(attacked) == outcome(undisturbed)
