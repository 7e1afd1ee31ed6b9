"""Lazy attributes: worked out when they are first asked for, and kept."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy:  # noqa: N801 - a decorator
        """`functools.cached_property` without its lock.

        Up to Python 3.11 that is one lock for all instances: a thread that works something out for a long history would
        hold up the event loop as soon as it asks for the same of a short one. Here two threads may both work it out.
        """

        def __init__(self, work: Any) -> None:
            self._work = work
            self.__doc__ = work.__doc__

        def __set_name__(self, _: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, _: type) -> Any:
            if instance is None:
                return self
            # Found there from now on: attributes of an instance come before a class's that cannot be set.
            return instance.__dict__.setdefault(self._name, self._work(instance))
