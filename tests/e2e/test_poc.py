"""The proof of concept rebuilt: when compactions come, the sawtooth between them, and what is still in the payload."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lab.benchmarks import poc
from lab.benchmarks.poc import PROBES, TOPICS, Course
from tests.e2e import running

pytestmark = pytest.mark.release


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    running.forget_environment(monkeypatch)


@pytest.fixture(params=["rolling", "default"])
def large(request: pytest.FixtureRequest) -> Course:
    return poc.course(request.param, poc.blocks(10, 5), turns=10)


@pytest.mark.parametrize("preset", ["rolling", "default"])
def test_of_five_queries_the_fifth_is_compacted_and_four_topics_are_kept(preset: str) -> None:
    small = poc.course(preset, poc.blocks(5, 1), turns=3)
    assert [step.query for step in small.compactions] == [5]
    assert small.steps[-1].topics == TOPICS[:5]  # Four in the summary, and the one that is asked about.
    assert small.steps[-1].tokens < small.steps[-2].tokens
    assert small.violations == 0


def test_fifty_queries_are_compacted_every_ten(large: Course) -> None:
    assert [step.query for step in large.compactions] == [12, 22, 32, 42]
    assert large.violations == 0


def test_tokens_rise_with_each_query_and_fall_with_each_compaction(large: Course) -> None:
    for before, after in pairwise(large.steps):
        assert (after.tokens < before.tokens) == after.compacted


def test_each_topic_is_still_in_the_payload_at_each_probe(large: Course) -> None:
    assert [step.topics for step in large.at(PROBES)] == [TOPICS[: (query + 4) // 5] for query in PROBES]


def test_one_rolling_summary_keeps_its_size_and_gives_up_what_was_said_first() -> None:
    rolling, additive = (poc.course(preset, poc.blocks(10, 5), turns=10) for preset in ("rolling", "default"))
    sizes, grown = ([step.tokens for step in course.compactions] for course in (rolling, additive))
    assert max(sizes[1:]) - min(sizes[1:]) < 100  # One turn stands in each, and they differ.
    assert all(after - before > 300 for before, after in pairwise(grown))
    assert rolling.steps[-1].people < 10 < additive.steps[-1].people == 49
