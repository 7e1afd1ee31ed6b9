"""Values: what never changes once it is made."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

import msgspec

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A frozen dataclass for what is made with every request: see `_struct`."""
    return (
        _struct(cls, frozen=True, weakref=True) if _can_be_struct(cls) else dataclass(slots=True, unsafe_hash=True)(cls)
    )


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def unlike(cls: type[T]) -> type[T]:
    """The same for what is equal to nothing but itself, and may keep what was worked out of it.

    That nothing is assigned to it afterwards is for the type checker to see.
    """
    return _struct(cls, eq=False, dict=True, weakref=True) if _can_be_struct(cls) else dataclass(eq=False)(cls)


def _can_be_struct(cls: type) -> bool:
    """No struct has a member that is not given, or not compared."""
    return all(each.init and each.compare for each in vars(cls).values() if isinstance(each, Field))


def _struct(cls: type[T], **options: bool) -> type[T]:
    """A dataclass to all who ask, whose objects are made in C.

    A request makes some thirty of them, and what `dataclass` writes in Python takes four times as long for each.
    """
    members = fields(described := dataclass(init=False, repr=False, eq=False)(cls))  # type: ignore[arg-type]
    beside = {"__annotations__", "__dict__", "__weakref__", *(each.name for each in members)}
    namespace = {name: held for name, held in vars(described).items() if name not in beside}
    bases = (msgspec.Struct, *(base for base in cls.__bases__ if base is not object))
    made: Any = msgspec.defstruct
    return made(cls.__name__, map(_member, members), bases=bases, namespace=namespace, **options)  # type: ignore[no-any-return]


def _member(each: Field[Any]) -> tuple[Any, ...]:
    if each.default_factory is not MISSING:
        return each.name, each.type, msgspec.field(default_factory=each.default_factory)
    return (each.name, each.type) if each.default is MISSING else (each.name, each.type, each.default)
