"""Windows of every model, as they are known without refusals: config > announced > bundled > a guess."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from app.core.limits.budget import Window
from app.providers.discovery import ModelListing
from app.providers.registry import bundled, look_up
from app.runtime.bounded import BoundedMap
from app.settings import ModelSettings, entry_of

GUESSED = "neither configured nor announced nor known: a guess"
SAME_CONTEXT = 0.07
"""Numbers this close are one number, rounded."""
MOST_CACHED = 4_096


class KnownWindows:
    """Settings, the provider's list and the registry, each read once for every model."""

    def __init__(self, models: Sequence[ModelSettings], guess: int) -> None:
        """`guess`: tokens of the window of a model that nobody knows."""
        self._models = models
        self._guess = guess
        self._cache: BoundedMap[str, Window] = BoundedMap(MOST_CACHED)
        self.listing: ModelListing | None = None
        """The provider's last listing."""
        self.revision = 0
        """Number that rises whenever a provider's list changes a window."""

    def announce(self, listing: ModelListing) -> None:
        self.listing = listing
        self.revision += 1
        self._cache.clear()

    def of(self, model: str) -> Window:
        window = self._cache.get(model)
        if window is None:
            window = self._resolve(model)
            self._cache.keep(model, window)
        return window

    def is_set(self, model: str) -> bool:
        """True if the settings name the window, so that the provider need not be asked."""
        entry = entry_of(model, self._models)
        return entry is not None and entry.context_window is not None

    def names_set(self) -> Iterator[str]:
        """The models that the settings name without a glob."""
        return (entry.match for entry in self._models if not set(entry.match) & set("*?["))

    def _resolve(self, model: str) -> Window:
        entry = entry_of(model, self._models)
        if entry is not None and entry.context_window is not None:
            return Window(entry.context_window, "config", entry.max_input_tokens)
        sized_as = (entry and entry.base_model) or model
        listed, there = self.listing.of(model) if self.listing else None, known(sized_as)
        guess = Window(self._guess, "default", note=GUESSED)
        window = completed(listed, there) if listed else there or guess
        if entry is None:
            return window
        return replace(window, max_input=entry.max_input_tokens or window.max_input)


def known(model: str) -> Window | None:
    """The window in the bundled registry."""
    found = look_up(model, bundled())
    if found is None:
        return None
    name, numbers = found
    note = None if name == model else f"taken for {name}"
    return Window(numbers.context, "bundled", numbers.max_input, numbers.max_output, note)


def completed(announced: Window, known: Window | None) -> Window:
    """Lists often name the context alone; where it is the one we know, so are the bounds inside it."""
    if known is None or abs(known.context - announced.context) > SAME_CONTEXT * known.context:
        return announced
    most_input = known.max_input if known.max_input and known.max_input < announced.context else None
    most_output = known.max_output if known.max_output and known.max_output < announced.context else None
    return replace(
        announced, max_input=announced.max_input or most_input, max_output=announced.max_output or most_output
    )
