"""`steno audit`: what operators did, from the database; and who runs a command that is recorded there."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence

import msgspec

from app.commands.terminal import on_terminal, print_json, say, say_row
from app.store.audit import Act


def user() -> str:
    """Whoever runs this process, as the audit trail names him: the system knows, whatever the environment says."""
    number = os.getuid()
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:  # As in a container.
        return f"user {number}"


def show_list(acts: Sequence[Act]) -> None:
    """Print a line for each, the newest first."""
    if on_terminal() and not acts:
        say("No operator did anything yet.")
    for act in acts:
        say_row((f"{act.at:%Y-%m-%dT%H:%M:%SZ}", act.who, act.did, act.tenant or "-", act.subject or "-"))


def list_as_json(acts: Sequence[Act]) -> None:
    print_json([msgspec.to_builtins(act) for act in acts])
