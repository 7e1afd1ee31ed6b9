"""The routers of all pages."""

from __future__ import annotations

from app.inspector import (
    actions,
    conversation,
    conversations,
    files,
    landing,
    overview,
    reference,
    signing_in,
)

_SUBJECTS = (landing, overview, conversations, actions, conversation, reference, signing_in, files)

INSPECTOR_ROUTERS = tuple(subject.router for subject in _SUBJECTS)
"""Routers of the inspector, in order: the last one takes whatever path none of the others has."""
