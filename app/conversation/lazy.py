"""Lazy attributes: computed on first access, and cached."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    lazy = cached_property
else:

    class lazy:  # noqa: N801 - a decorator
        """`functools.cached_property` without its lock.

        Up to Python 3.11, one lock serves all instances: a thread that computes an attribute of a long history would
        block the event loop at that attribute of a short history. Without the lock, both threads may compute it.
        """

        def __init__(self, work: Any) -> None:
            self._work = work
            self.__doc__ = work.__doc__

        def __set_name__(self, _: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, _: type) -> Any:
            if instance is None:
                return self
            # Later accesses find the value in `__dict__`, because a descriptor without `__set__` comes second.
            return instance.__dict__.setdefault(self._name, self._work(instance))
