"""Values: what never changes once it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[T]) -> type[T]:
    """A frozen dataclass for what is made with every request.

    That nothing is assigned to it afterwards is for the type checker to see. To have it seen whenever one is made
    takes three times as long, and a request makes a hundred and fifty attributes.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def unlike(cls: type[T]) -> type[T]:
    """The same for what is equal to nothing but itself, and may keep what was worked out of it."""
    return dataclass(eq=False)(cls)
