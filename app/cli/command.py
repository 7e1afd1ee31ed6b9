"""Shared parts of the commands: options, loading of settings, output, and exit on errors."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import structlog
import typer

from app.settings import ConfigurationError, ModelSettings, Settings, load

LEAST_WINDOW = 1_000

Upstream = Annotated[str | None, typer.Option(help="The provider's base URL, such as https://api.openai.com/v1.")]
Config = Annotated[str | None, typer.Option(help="YAML file with settings.")]
DatabaseURL = Annotated[str | None, typer.Option(help="PostgreSQL or SQLite URL, or `memory`.")]
WindowOption = Annotated[int | None, typer.Option(min=LEAST_WINDOW, help="Context window of every model, in tokens.")]


def settings_of(config: str | None, **flags: Mapping[str, Any]) -> Settings:
    """Silence the log, and load the settings. Exit if the settings are not valid."""
    keep_quiet()
    with failing_on(ConfigurationError):
        return load_settings(config, **flags)


def load_settings(config: str | None, **flags: Mapping[str, Any]) -> Settings:
    """Load the settings; flags that are not None have precedence. Raises `ConfigurationError`."""
    if config:
        os.environ["STENO_CONFIG"] = config
    given = {name: {k: v for k, v in section.items() if v is not None} for name, section in flags.items()}
    return load(**{name: section for name, section in given.items() if section})


def at_window(settings: Settings, window: int) -> Settings:
    """Return the settings with this context window (in tokens) for every model, and without `max_input_tokens`."""
    limits = {"context_window": window, "max_input_tokens": None}
    models = (model.model_copy(update=limits) for model in settings.models)
    return settings.model_copy(update={"models": (*models, ModelSettings(match="*", context_window=window))})


def keep_quiet() -> None:
    """Silence all logging, because commands print their own messages."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger().addHandler(logging.NullHandler())


def fail(message: str, status: int = 1) -> NoReturn:
    typer.echo(f"steno: {message}", err=True)
    raise typer.Exit(status)


@contextmanager
def failing_on(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        fail(str(error))
