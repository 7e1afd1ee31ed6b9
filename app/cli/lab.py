"""The lab: tools to try and measure Steno, installed beside it as an extra. Nothing else of `app` knows of them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from app.settings import ConfigurationError
from app.settings.checks import install_command

BROUGHT = frozenset({"anthropic", "lab", "openai"})
"""Packages that the extra installs."""


def lab(module: str) -> Any:
    """Import a module of the lab. Raises `ConfigurationError` where the extra is not installed."""
    try:
        return import_module(f"lab.{module}")
    except ModuleNotFoundError as error:
        if error.name not in BROUGHT:
            raise
        raise ConfigurationError(f"This needs the extra `lab`: {install_command('lab')}.") from error
