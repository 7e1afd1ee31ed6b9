"""Lazy attributes: worked out when they are first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801 - a decorator
    """`functools.cached_property` without its lock.

    Up to Python 3.11 that is one lock for all instances: a thread that works something out for a long history would
    hold up the event loop as soon as it asks for the same of a short one. Here two threads may both work it out.
    """

    def __init__(self, work: Callable[[Any], T]) -> None:
        self._work = work
        self._name = ""
        self.__doc__ = work.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        # Found there from now on: attributes of an instance come before a class's that cannot be set.
        kept: T = instance.__dict__.setdefault(self._name, self._work(instance))
        return kept

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: T) -> None:
            """Set the value where it is known already, as any other attribute of the instance."""
