"""A window for every model, whatever the settings and the providers say."""

from __future__ import annotations

from app.settings import ModelSettings, Settings


def at_window(settings: Settings, window: int) -> Settings:
    """Return the settings with this context window (tokens) for every model; other limits stay as they are set."""
    limits = {"context_window": window, "max_input_tokens": None}
    models = (model.model_copy(update=limits) for model in settings.models)
    return settings.model_copy(update={"models": (*models, ModelSettings(match="*", context_window=window))})
