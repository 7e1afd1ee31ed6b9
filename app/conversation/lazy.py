"""Lazy attributes: computed on first access, and cached."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy:  # noqa: N801 - a decorator
        """`functools.cached_property` without its lock.

        Up to Python 3.11, all instances share one lock: while a thread computes an attribute of a long history, the
        event loop could not compute it for a short history. Without the lock, two threads may compute the same value.
        """

        def __init__(self, work: Any) -> None:
            self._work = work
            self.__doc__ = work.__doc__

        def __set_name__(self, _: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, _: type) -> Any:
            if instance is None:
                return self
            # Later accesses find the value in `__dict__`, which precedes a descriptor without `__set__`.
            return instance.__dict__.setdefault(self._name, self._work(instance))
