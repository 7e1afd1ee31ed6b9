"""What is learnt from an answer, and what goes along with a request that is observed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.core.limits.budget import Line
from app.core.stages.ladder import Decision
from app.core.tokens.usage import Tokens
from app.proxy.learning import MISJUDGED, Observation
from app.wire.usage import Usage


async def run_at_once(_: str, work: Any) -> Any:
    return work()


@pytest.mark.parametrize(
    ("sent", "is_quoted", "learnt"), [(1_000, False, [4_000]), (999, False, []), (1_000, True, [])]
)
async def test_a_limit_is_learnt_if_it_fits_what_was_sent_and_is_not_the_clients_word(
    sent: int, is_quoted: bool, learnt: list[int]
) -> None:
    assert MISJUDGED == 4
    limits: list[int] = []
    windows = SimpleNamespace(learn=lambda _tenant, _model, overflow, *_, **__: limits.append(overflow.limit))
    request: Any = SimpleNamespace(
        budget=SimpleNamespace(line=Line(0.0, 1.0)),
        forwarded=lambda _: sent,
        format=SimpleNamespace(edits=None),
        measure=SimpleNamespace(asked="m"),
        provider=SimpleNamespace(windows=windows),
        tenant="t",
        wire=SimpleNamespace(answer=SimpleNamespace(output=None), echoed_in=lambda *_: is_quoted, model="m"),
    )
    services: Any = SimpleNamespace(work=SimpleNamespace(do=run_at_once))
    observation = Observation(services, request, Decision(None))
    body = (
        b'{"error":{"message":"This model\'s maximum context length is 4000 tokens.","code":"context_length_exceeded"}}'
    )
    await observation.refusal(400, [], body)
    assert limits == learnt


def test_asides_go_along_as_far_as_there_is_room_for_them() -> None:
    request: Any = SimpleNamespace(
        budget=SimpleNamespace(limit=100),
        forwarded=lambda _: 60,
        count=len,
        payload=lambda *_, asides, **__: asides,
        wire=None,
    )
    asides: Any = [SimpleNamespace(text="a" * length) for length in (30, 10, 1)]
    decision: Any = SimpleNamespace(offered=True, view=None)
    observation = Observation(SimpleNamespace(), request, decision, asides=asides)  # type: ignore[arg-type]
    assert observation.payload() == asides[:2]
    assert observation.sent == 100


def test_of_several_rounds_the_first_is_entered_as_the_clients_with_the_last_ones_answer() -> None:
    entered: list[Any] = []
    request: Any = SimpleNamespace(
        budget=SimpleNamespace(line=Line(0.0, 1.0)),
        conversation=SimpleNamespace(chain="chain", tokens=100, transcript=SimpleNamespace(turn_starts=[0])),
        conversation_id="c",
        format=SimpleNamespace(name="chat_completions"),
        forwarded=lambda _: 60,
        measure=SimpleNamespace(decided=None, provider=SimpleNamespace(name="p")),
        model="m",
        provider=SimpleNamespace(windows=SimpleNamespace(learnt=SimpleNamespace(accepts=lambda _: None))),
        request_id="r",
        tenant="t",
        tokens=lambda _: (100, 60),
        wire=None,
    )
    services: Any = SimpleNamespace(ledger=SimpleNamespace(record=lambda **told: entered.append(told)))
    observation = Observation(services, request, Decision(None))
    for status, tokens in ((400, Tokens()), (200, Tokens(60, 5)), (200, Tokens(70, 5)), (200, Tokens(80, 30))):
        observation.answered(status)
        observation.usage(Usage(tokens, tokens.prompt), whole=False)
    observation.settle()
    told = [(each["estimated"], each["chain"], each["answer"]) for each in entered[1:]]
    assert told == [(100, "chain", Tokens(80, 30)), *[(0, None, Tokens(80, 30))] * 2]
    assert entered[0]["estimated"] == 100
