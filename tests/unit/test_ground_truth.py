"""Estimates against prompt sizes that providers reported, in every format of which recorded requests are at hand.

They are kept outside of the repository. `python -m lab.benchmarks.accuracy` makes the figures of docs/estimates.md; the
bounds here are a little wider, so that a rule that is lost shows and a row more or less does not.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from app.formats.paths import FORMATS
from app.tokens.tokenizer import TABLES
from lab.benchmarks.accuracy import KNOWN, Scored, Scorer

COLLECTION = Path(__file__).parents[3] / "shared" / "data"
FETCHED = Path(__file__).parents[2] / ".tables"
pytestmark = pytest.mark.skipif(
    not all((FETCHED / name).is_file() for name, _ in TABLES.values()), reason="tokenizer tables are fetched at set-up"
)

WITHIN_A_TENTH = {
    ("responses", "gpt-4 and before"): 0.90,
    ("responses", "gpt-5"): 0.86,
    ("responses", "grok"): 0.90,
    ("messages", "Claude up to 4.6"): 0.80,
    ("gemini", "Gemini from 2.5 on"): 0.60,
}
"""By format and family, of the requests of which all is known that their prompts cost: the share of those estimated
so well before anything was learnt."""


@pytest.mark.parametrize(("name", "family"), WITHIN_A_TENTH)
def test_estimates_are_close_to_what_providers_reported(name: str, family: str) -> None:
    if name not in {wire.name for wire in FORMATS}:
        pytest.skip("the format is not listed")
    rows = COLLECTION / f"token-groundtruth-{name}.jsonl"
    if not rows.exists():
        pytest.skip("the collection of recorded requests is not beside this checkout")
    close = [one.error <= 0.1 for one in scored(name, rows)[family]]
    assert len(close) >= 20
    assert mean(map(float, close)) >= WITHIN_A_TENTH[name, family]


def scored(name: str, rows: Path) -> dict[str, list[Scored]]:
    scorer = Scorer(next(wire for wire in FORMATS if wire.name == name))
    families: dict[str, list[Scored]] = defaultdict(list)
    for line in rows.read_text().splitlines():
        if (one := scorer.score(json.loads(line))) and one.sort == KNOWN:
            families[one.family].append(one)
    return families
