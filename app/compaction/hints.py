"""Remedies: advice to the operator about a reason, for the log. None where there is nothing to do."""

from __future__ import annotations

from collections.abc import Mapping

from app.conversation.reasons import Code, Reason, Reasons

_ANOTHER_MODEL = "Choose another summary.model, or add summary.fallbacks."
_MORE_OUTPUT = "Raise summary.max_tokens, lower the effort in summary.parameters, or choose another summary.model."
_OWN_FAULT = "This is a fault in Steno: report it with the lines of this request_id."
_REMEDIES: Mapping[Code, str] = {
    Code.FLOOR_EXCEEDS_LIMIT: "Send shorter instructions or fewer tools, or use a model with a larger window.",
    Code.STORAGE: "See to the database; `steno doctor` tries it.",
    Code.TOO_MANY_COMPACTIONS: "Raise limits.compactions_per_tenant if this is normal load.",
    Code.SUMMARY_TAKES_TOO_LONG: "Choose a faster summary.model, or raise compaction.wait_seconds.",
    Code.SUMMARISER_UPSTREAM_UNREACHABLE: "Check the base URL of summary.upstream, and whether it is running.",
    Code.SUMMARISER_UPSTREAM_TIMEOUT: "Choose a faster summary.model, or raise summary.timeout_seconds.",
    Code.SUMMARISER_ANSWER_CUT: _MORE_OUTPUT,
    Code.SUMMARISER_ANSWER_UNREADABLE: _ANOTHER_MODEL,
    Code.SUMMARISER_ANSWER_TOO_LARGE: _ANOTHER_MODEL,
    Code.SUMMARY_IS_A_TOOL_CALL: _ANOTHER_MODEL,
    Code.SUMMARY_NOT_FINISHED: _MORE_OUTPUT,
    Code.SUMMARY_EMPTY: _MORE_OUTPUT,
    Code.SUMMARY_REFUSED: _ANOTHER_MODEL,
    Code.SUMMARY_TOO_SHORT: _ANOTHER_MODEL,
    Code.SUMMARY_TOO_LONG: _ANOTHER_MODEL,
    Code.SUMMARY_NOT_SMALLER: _ANOTHER_MODEL,
    Code.PAYLOAD_REFUSED: _OWN_FAULT,
    Code.INTERNAL_ERROR: _OWN_FAULT,
}
_STATUSES: Mapping[str, str] = {
    "401": "Check the key that the summariser's upstream is sent.",
    "403": "Check the key that the summariser's upstream is sent, and what it may use.",
    "404": "Check summary.model and the base URL of summary.upstream.",
    "429": "Raise the provider's rate limit, or add summary.fallbacks.",
}
_FAULT = "This is the provider's own trouble: add summary.fallbacks to be independent of it."


def hint_for(why: Reasons) -> str | None:
    """Return the remedy for the first reason that has one."""
    return next((remedy for reason in why if (remedy := _remedy(reason)) is not None), None)


def _remedy(reason: Reason) -> str | None:
    if reason.code is Code.SUMMARISER_STATUS:
        return _STATUSES.get(reason.detail, _FAULT if reason.detail.startswith("5") else _ANOTHER_MODEL)
    return _REMEDIES.get(reason.code)
