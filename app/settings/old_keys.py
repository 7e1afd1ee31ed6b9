"""Keys of earlier releases: accepted for one release without an effect, so that no start fails over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_OF_THE_PRESET = "The preset decides it; take it out."
_FIXED = "It has its default for good; take it out."
_AS_THE_PROMPT = "The prompt beside it is for updates, too, with a note that says so; take it out."

OLD_KEYS: Mapping[str, str] = {
    "summary.update_prompt": _AS_THE_PROMPT,
    "summary.prompts.*.update_prompt": _AS_THE_PROMPT,
    "summary.reasoning_allowance": "It is 8,192; lower the effort of a model that thinks longer in summary.parameters.",
    "compaction.cost_gate.enabled": "If it was false, set compaction.cost_gate.requests to null;"
    " if it was true beside a preset, to 10.",
    "compaction.recall.enabled": "If it was false, set compaction.recall.max_ratio to 0;"
    " if it was true beside a preset, to 0.05.",
    "list_prices": "Set prices to null if it was false.",
    "tokenizer.required": "Name the folder of the tables in tokenizer.directory if it was true.",
    "limits.values": _FIXED,
    "limits.messages": _FIXED,
    "limits.upload_bytes": _FIXED,
    "events.keep_alive_seconds": "It is 10, and less for a client that announces its timeout; take it out.",
    "summary.source_tokens": _OF_THE_PRESET,
    "compaction.default_window": "Name the windows of models that nobody knows under models.",
    "compaction.overflow_retries": "A request that is refused for its size is sent once more; take it out.",
    "upstream.connect_seconds": _FIXED,
    "upstreams.*.connect_seconds": _FIXED,
    "compaction.mask.characters": _FIXED,
    "compaction.mask.pressure": _OF_THE_PRESET,
    "compaction.mask.minimum_gain": _FIXED,
    "compaction.tail.fill_tokens": _FIXED,
    "compaction.session_pruning.keep_last_assistants": _FIXED,
    "compaction.session_pruning.soft_trim_ratio": _FIXED,
    "compaction.session_pruning.soft_trim_max_chars": _FIXED,
    "compaction.session_pruning.soft_trim_head_chars": _FIXED,
    "compaction.session_pruning.soft_trim_tail_chars": _FIXED,
    "compaction.session_pruning.hard_clear": _FIXED,
    "compaction.session_pruning.hard_clear_ratio": _FIXED,
    "compaction.session_pruning.hard_clear_placeholder": _FIXED,
    "compaction.session_pruning.min_prunable_tool_chars": _FIXED,
    "compaction.session_pruning.allow": "Set compaction.mask.allow, which holds for session pruning, too.",
    "compaction.session_pruning.deny": "Set compaction.mask.deny, which holds for session pruning, too.",
    "compaction.position_pruning": "Set compaction.session_pruning.mode to position if it was enabled.",
    "compaction.fade": "Preset librechat-fading does it; take it out.",
    "compaction.fit": _OF_THE_PRESET,
    "compaction.emergency": _OF_THE_PRESET,
    "compaction.prune.stub": _OF_THE_PRESET,
    "compaction.reserve_ratio": _OF_THE_PRESET,
    "compaction.background.ratio": _FIXED,
    "compaction.background.wait_ratio": _FIXED,
    "compaction.background.requests": _FIXED,
    "compaction.background.tokens_per_hour": "It is 10,000; compaction.background.enabled: false turns it off.",
    "compaction.background.shorten": "compaction.background.enabled: false makes each request wait for its summary.",
    "compaction.recall.history_tokens": _FIXED,
    "calibration.ask_usage": _FIXED,
    "identity.use_prompt_cache_key": "Add prompt_cache_key to identity.body_names if it was true.",
    "identity.use_user": "Add user to identity.body_names if it was true.",
    "summary.failed_results": _OF_THE_PRESET,
    "summary.rules.share": _FIXED,
    "storage.listen_notify": "storage.statement_cache: false turns it off, too.",
    "limits.header_count": _FIXED,
    "limits.header_bytes": _FIXED,
    "limits.write_stall_seconds": "Set limits.receive_seconds, which holds for it, too.",
    "limits.background_compactions": "It is 16; compaction.background.enabled: false turns them off.",
    "limits.background_compactions_per_tenant": _FIXED,
    "limits.background_bytes": _FIXED,
}
"""Advice for each key that is no setting any more. Emptied with the next release."""


def without_old_keys(given: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Settings as given but for old keys, and the old keys that were there."""
    found = []
    for key in OLD_KEYS:
        left = _without(given, key.split("."))
        if left is not given:
            found.append(key)
            given = left
    return given, tuple(found)


def _without(given: Any, names: Sequence[str]) -> Any:
    """Copy without the key of that path, or the very object that was given where it has no such key."""
    name, *rest = names
    if name == "*" and isinstance(given, list):
        entries = [_without(each, rest) for each in given]
        return entries if any(new is not old for new, old in zip(entries, given, strict=True)) else given
    if not isinstance(given, Mapping):
        return given
    if not rest:
        return {other: value for other, value in given.items() if other != name} if name in given else given
    within = given if name == "*" else given.keys() & {name}
    left = {each: _without(given[each], rest) for each in within}
    return {**given, **left} if any(left[each] is not given[each] for each in left) else given
