"""Why a payload looks as it does, in words: the numbers of its plan, each step that was tried, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from app.api.plan import step_in_words
from app.conversation.reasons import Code
from app.inspector.formats import counted, whole

Tone = Literal["plain", "over", "done", "bad"]
Plan = Mapping[str, Any]
"""Plan as it is stored: see `account_of` in `compaction/fallback`."""
SOURCES = {
    "config": "set in the settings",
    "provider": "as its provider says",
    "learnt": "learnt from a refusal",
    "bundled": "from the bundled list of models",
    "default": "assumed: its size is not known",
}
"""Sources of a window, in words."""
_BY_WORD = {str(code): code for code in Code}
_TRIED: Mapping[tuple[str, str], tuple[str, Tone]] = {
    ("stored", "fits"): ("Checked", "plain"),
    ("stored", "too_large"): ("Checked", "over"),
    ("mask", "set"): ("Masked", "done"),
    ("mask", "put_off"): ("Mask put off", "plain"),
    ("summarise", "made"): ("Summarised", "done"),
    ("summarise", "awaited"): ("Waited", "plain"),
    ("summarise", "in_background"): ("Put off", "plain"),
    ("summarise", "takes_too_long"): ("Went on", "plain"),
    ("summarise", "lease_lost"): ("Overtaken", "plain"),
}
"""Words and tone of what came of a step."""
_ENDED: Mapping[str, tuple[str, Tone]] = {"sent": ("Chosen", "done"), "refused": ("Not enough", "bad")}


class Explained(NamedTuple):
    title: str
    text: str
    tone: Tone = "plain"


def explained(plan: Plan | None, sent: int, parts: Sequence[Mapping[str, Any]]) -> list[Explained]:
    """Explanation of a payload. `sent`: tokens of the latest request; without a plan nothing was due for it."""
    if plan is None:
        sentence = f"The client's {whole(sent)} tokens were under the trigger, and its bytes went out as they came."
        return [Explained("Nothing was due", sentence)]
    return list(_explained(plan, parts))


def _explained(plan: Plan, parts: Sequence[Mapping[str, Any]]) -> Iterator[Explained]:
    came, went, trigger = plan["estimated"], plan["forwarded"], plan["trigger"]
    source = SOURCES.get(plan["window_source"], plan["window_source"])
    yield Explained(
        "Room", f"A window of {whole(plan['window'])}, {source}; the prompt may use {whole(plan['limit'])}."
    )
    over = f"{whole(came - trigger)} over" if came > trigger else "within"
    received = f"{whole(came)} tokens, {over} the trigger of {whole(trigger)}."
    yield Explained("Received", received, "over" if came > trigger else "plain")
    yield Explained(
        "Minimum",
        f"{whole(plan['floor'])} tokens of it are never touched: instructions, tools and the last user message."
        f" A compaction aims at {whole(plan['target'])}.",
    )
    for step in plan["steps"]:
        ended = _ENDED.get(step["outcome"], ("Not summarised", "bad"))
        title, tone = _TRIED.get((step["step"], step["outcome"]), ended)
        yield Explained(title, step_in_words(step), tone)
    if chunks := [part for part in parts if part["kind"] == "summarized"]:
        covered = sum(part["last_index"] - part["first_index"] + 1 for part in chunks)
        stand = f"{counted(len(chunks), 'summary', 'summaries')} {'stands' if len(chunks) == 1 else 'stand'}"
        tokens = whole(sum(part["tokens"] for part in chunks))
        yield Explained("In it", f"{stand} for {whole(covered)} messages, in {tokens} tokens.", "done")
    if quoted := sum(part["tokens"] for part in parts if part["kind"] in ("recalled", "exact_values", "state")):
        yield Explained("Quoted", f"{whole(quoted)} tokens of what the last user message is about.", "done")
    fewer = f", {whole(came - went)} fewer." if came > went else "."
    yield Explained("Went out", f"{whole(went)} tokens{fewer}", "done")


def meanings(*reasons: str | None) -> list[tuple[str, str]]:
    """Reasons named in these lines, each once, with its meaning."""
    found = dict.fromkeys(word for reason in reasons for word in re.findall(r"[a-z_]+", reason or ""))
    return [(word, _BY_WORD[word].meaning) for word in found if word in _BY_WORD]
