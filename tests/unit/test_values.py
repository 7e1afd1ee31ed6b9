"""Values: made in C, and dataclasses to all who ask."""

from __future__ import annotations

import gc
import weakref
from copy import copy
from dataclasses import asdict, field, fields, replace
from typing import ClassVar

import pytest

from app.core.lazy import lazy
from app.core.values import unlike, value


@value
class Place:
    """Where."""

    origin: ClassVar[str] = "here"

    name: str
    marks: list[int] = field(default_factory=list)
    note: str = "none"

    @property
    def loud(self) -> str:
        return self.name.upper()


@value
class Step:
    name: str
    took: float = field(default=0.0, compare=False)


@unlike
class Thing:
    name: str

    @lazy
    def loud(self) -> str:
        return self.name.upper()


@unlike
class Counted:
    """With a member that is not given."""

    name: str
    known: dict[str, int] = field(default_factory=dict, init=False)

    @lazy
    def loud(self) -> str:
        return self.name.upper()


def test_a_value_is_a_dataclass_to_all_who_ask() -> None:
    place = Place("a", note="b")
    assert (place.loud, place.origin, place.__doc__) == ("A", "here", "Where.")
    assert [each.name for each in fields(Place)] == ["name", "marks", "note"]
    assert replace(place, name="c") == Place("c", [], "b") != place
    assert asdict(place) == {"name": "a", "marks": [], "note": "b"}
    assert (copy(place), repr(place)) == (place, "Place(name='a', marks=[], note='b')")
    assert place.marks is not Place("a").marks
    match place:
        case Place(name, _, note):
            assert (name, note) == ("a", "b")
    with pytest.raises(TypeError):
        Place()  # type: ignore[call-arg]


def test_nothing_is_assigned_to_a_value() -> None:
    with pytest.raises(AttributeError):
        Place("a").name = "b"  # type: ignore[misc]


def test_equal_values_are_one_key_and_what_is_not_compared_makes_no_difference() -> None:
    assert Step("a", 1.0) == Step("a", 2.0) != Step("b", 1.0)
    assert len({Step("a", 1.0), Step("a", 2.0), Step("b")}) == 2


@pytest.mark.parametrize("kind", [Thing, Counted])
def test_what_is_unlike_equals_itself_alone_keeps_what_was_worked_out_and_goes_when_nobody_holds_it(
    kind: type[Thing | Counted],
) -> None:
    thing = kind("a")
    assert thing != kind("a")
    assert len({thing, kind("a")}) == 2
    assert thing.loud is thing.loud
    assert replace(thing, name="b").loud == "B"
    gone = weakref.ref(thing)
    gc.disable()
    try:
        del thing
        assert gone() is None
    finally:
        gc.enable()
