"""The golden exchanges: each case in each format, whole and streamed, against its invariants and its recording."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.exchanges import recordings
from tests.exchanges.cases import Variant, variants
from tests.exchanges.matching import mismatches
from tests.exchanges.playing import Exchange, Player, Stages, sections_of, universal_problems
from tests.exchanges.recordings import Placeholders, Recorder

VARIANTS = list(variants())


@pytest.mark.parametrize("variant", [pytest.param(variant, id=variant.id) for variant in VARIANTS])
def test_exchange(variant: Variant, stages: Stages, request: pytest.FixtureRequest) -> None:
    database = "memory" if variant.database == "sqlite" else str(request.getfixturevalue("postgres_url"))
    stage, finish = stages.stage_for(variant, sections_of(variant, database))
    try:
        exchanges = Player(variant, stage).play()
        port = stage.provider.url.removeprefix("http://")
    finally:
        finish()
    problems = [*_problems(variant, exchanges)]
    assert not problems, f"{variant.id}\n" + "\n".join(problems)
    if not variant.is_recorded:
        return
    played = Recorder(Placeholders(variant, port)).record(exchanges)
    recorded = recordings.read(variant)
    if played == recorded:
        return
    if request.config.getoption("record", default=False):
        recordings.write(variant, played)
        return
    path, _ = recordings.file_of(variant)
    told = "differs from its recording" if recorded else "has no recording"
    pytest.fail(
        f"{variant.id} {told} in {path.name}.\n{recordings.difference(recorded, played)}\n"
        f"If this is meant: make exchanges ONLY={variant.name.replace('/', '.')}",
        pytrace=False,
    )


def test_every_recording_is_one_of_a_case(request: pytest.FixtureRequest) -> None:
    removed = bool(request.config.getoption("record", default=False))
    stale = recordings.without_case(VARIANTS, removed=removed)
    assert removed or not stale, f"make exchanges ONLY=every_recording takes these out: {stale}"


def _problems(variant: Variant, exchanges: list[Exchange]) -> Iterator[str]:
    """A sentence for each invariant that does not hold."""
    for exchange in exchanges:
        expected = {"status": 200, **exchange.spec["expect"]} if exchange.format else exchange.spec["expect"]
        told = mismatches(expected, exchange.seen)
        if not variant.spec.get("unchecked"):
            told += universal_problems(exchange)
        yield from (f"  request {exchange.number}: {sentence}" for sentence in told)
    totals = {
        "calls": sum(exchange.seen["calls"] for exchange in exchanges),
        "summaries": sum(exchange.seen["summaries"] for exchange in exchanges),
    }
    if expected_totals := variant.spec.get("totals"):
        yield from (f"  in all: {sentence}" for sentence in mismatches(expected_totals, totals))
