"""Reasons: why something could not be done, as people are told."""

from __future__ import annotations


def joined(*reasons: str | None) -> str | None:
    """The reasons there are, in one line. The first names the cause, the others what came of it."""
    return ", ".join(dict.fromkeys(reason for reason in reasons if reason)) or None
