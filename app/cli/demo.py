"""`steno demo`: a scripted conversation with and without Steno, against a simulated provider."""

from __future__ import annotations

import sys
from importlib import import_module

from app.cli.command import commands, failing_on, keep_quiet
from app.settings import ConfigurationError

cli = commands()


@cli.command()
def demo() -> None:
    """Hold a long conversation with and without Steno, against a simulated provider: no key, no network."""
    keep_quiet()
    with failing_on(ConfigurationError):
        sys.exit(import_module("lab.demo").hold_conversation())
