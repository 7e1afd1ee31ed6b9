"""What is learnt from an answer, and what goes along with a request that is observed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.compaction.decision import Decision
from app.providers.windows import overflow_in
from app.proxy.exchange import Attempt
from app.proxy.learn import MISJUDGED, learn_limit
from app.tokens.calibration import Line


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
        measure=SimpleNamespace(asked="m"),
        provider=SimpleNamespace(windows=windows),
        tenant="t",
        wire=SimpleNamespace(
            answer=SimpleNamespace(output=None), body=b'["%b"]' % (b"4,000" if is_quoted else b""), model="m"
        ),
    )
    services: Any = SimpleNamespace(work=SimpleNamespace(do=run_at_once))
    attempt = Attempt(request, Decision(None))
    body = (
        b'{"error":{"message":"This model\'s maximum context length is 4000 tokens.","code":"context_length_exceeded"}}'
    )
    overflow = overflow_in(400, [], body)
    assert overflow is not None
    assert await learn_limit(services, attempt, overflow, body) is bool(learnt)
    assert limits == learnt
