"""`make canaries`, with a session of its own in place of the packages."""

from __future__ import annotations

from types import SimpleNamespace

from lab.benchmarks.canaries import FRAMINGS, measure_constraints, measure_kit


def canary(content: str, value: str, *superseded: str) -> SimpleNamespace:
    kind = SimpleNamespace(value="hard_constraint")
    return SimpleNamespace(content=content, type=kind, required_tokens=(value,), superseded_tokens=superseded)


def test_a_replaced_limit_outlives_five_compactions_behind_the_one_before_it() -> None:
    said = ("HARD CONSTRAINT: Budget cap is $800 total.", "HARD CONSTRAINT: Budget cap is $500 total.")
    session = SimpleNamespace(turns=[SimpleNamespace(role="user", text=text) for text in said])
    planted = [canary(said[1], "$500", "$800"), canary("Never said: 4711.", "4711")]
    found = measure_kit(lambda _: (session, planted), seeds=[1])
    assert found.planted == {"hard constraint": 2}
    assert found.held == found.literal == {"hard constraint": 1}
    assert (found.updated, found.stale, found.old_last) == (1, 0, 0)
    assert not found.passed  # The other one is lost.
    assert "| hard constraint | 2 | 1 | 1 |" in found.table()


def test_constraints_outlive_five_compactions_behind_each_framing() -> None:
    constraints = {
        "SCS": [{"sc": "Always show amounts in francs."}, {"sc": "Reply in bullet points only."}],
        "render_sc": lambda text, strict, direct: f"{strict}, {direct}: {text}",
    }
    assert measure_constraints(constraints) == dict.fromkeys(FRAMINGS, (2, 2))
