"""Models: how each is sized, counted and charged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, model_validator

from app.settings.places import home
from app.settings.sections.trigger import TriggerSettings
from app.settings.types import Preset, Rate, Section, fits
from app.tokens.usage import MOST_TOKENS, Price


class ModelSettings(Section):
    """Window of a model, and what else is decided by it."""

    match: str
    """Model name, or a glob such as `gpt-4o*`."""
    context_window: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens that the model accepts, prompt and completion together."""
    max_input_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens that the prompt may have, if that is less than the window."""
    base_model: str | None = Field(None, min_length=1)
    """Model that it is counted and sized as, such as gpt-4o for an Azure deployment called chat-prod."""
    preset: Preset | None = None
    """Preset of requests for the model; null means compaction.preset."""
    trigger: TriggerSettings | None = None
    """Trigger of requests for the model; null means compaction.trigger."""

    @model_validator(mode="after")
    def _says_something(self) -> ModelSettings:
        if not (self.context_window or self.base_model or self.preset or self.trigger):
            raise ValueError(
                "context_window is needed, or base_model, the model whose window it has, or a preset or a trigger"
            )
        return self

    @model_validator(mode="after")
    def _input_fits_the_window(self) -> ModelSettings:
        if self.max_input_tokens and self.context_window and self.max_input_tokens > self.context_window:
            raise ValueError(
                f"max_input_tokens ({self.max_input_tokens}) is more than context_window ({self.context_window}),"
                " which counts prompt and completion together"
            )
        return self

    def fits(self, model: str) -> bool:
        return fits(model, self.match)


def entry_of(model: str, entries: Iterable[ModelSettings]) -> ModelSettings | None:
    """First entry that fits the model; None if none does."""
    return next((entry for entry in entries if entry.fits(model)), None)


class PriceSettings(Section):
    """Price of a model."""

    match: str
    """Model name, or a glob such as `gpt-4o*`."""
    prompt: Rate
    """Price of a million prompt tokens."""
    completion: Rate
    """Price of a million completion tokens."""
    cached: Rate | None = None
    """Price of a million prompt tokens read from the provider's cache; null: that of other prompt tokens."""
    written: Rate | None = None
    """Price of a million prompt tokens written to that cache; null: that of other prompt tokens."""

    @property
    def price(self) -> Price:
        return Price(self.prompt, self.completion, self.cached, self.written)

    def fits(self, model: str) -> bool:
        return fits(model, self.match)


class CalibrationSettings(Section):
    """[Calibration](calibration.md) of estimates by what providers report."""

    enabled: bool = True
    """Learn from the usage that providers report how their tokens differ from Steno's estimate."""


class TokenizerSettings(Section):
    """Tables that tokens are counted with."""

    directory: Path | None = None
    """Folder with the tokenizer tables; null means `tables` in Steno's folder. The usual places are searched next.

    [`steno tables`](install.md#the-token-tables) puts them there; the usual places are `TIKTOKEN_CACHE_DIR`,
    `DATA_GYM_CACHE_DIR`, `.tables` beside the code and two Python packages. If a folder is named and a table is in none
    of these places, Steno does not start; otherwise it estimates by bytes.
    """

    @property
    def folder(self) -> Path:
        """Folder into which `steno tables` puts the tables."""
        return self.directory or home() / "tables"
