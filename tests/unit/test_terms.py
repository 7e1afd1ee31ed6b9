"""Terms: they hold for requests that say the same, until something is learnt or a second is over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.proxy import intake
from app.proxy.intake import Terms, known_terms

LIKE, UNLIKE = SimpleNamespace(alike=object()), SimpleNamespace(alike=object())


def caller(revision: int = 1, until: float = 10.0) -> Any:
    held = SimpleNamespace(measure=SimpleNamespace(provider=SimpleNamespace(revision=1)))
    return SimpleNamespace(kept={Terms: (LIKE.alike, revision, until, held)})


def known(request: Any, of: Any) -> bool:
    return known_terms(request, of) is not None


def test_terms_hold_for_what_says_the_same_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "monotonic", lambda: 9.0)
    assert known(LIKE, caller())
    assert not known(UNLIKE, caller())
    assert not known(SimpleNamespace(alike=None), caller())
    assert not known(LIKE, SimpleNamespace(kept={}))


def test_terms_end_with_their_second_and_with_what_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "monotonic", lambda: 9.0)
    assert not known(LIKE, caller(revision=0))
    assert not known(LIKE, caller(until=9.0))
