"""The routers of all that is under `/context`."""

from __future__ import annotations

from app.api import (
    compact,
    conversations,
    mcp,
    messages,
    models,
    pins,
    plan,
    summaries,
    tenant,
    usage,
)

_SUBJECTS = (compact, pins, tenant, usage, conversations, messages, summaries, models, plan)

ROUTERS = (*(subject.router for subject in _SUBJECTS), mcp.router)
"""Routers of the REST interface, in the order in which the schema lists them."""
