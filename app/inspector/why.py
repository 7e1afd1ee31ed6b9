"""Why a payload looks as it does, in words and numbers: from what came to what went out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from app.api.plan_words import step_in_words
from app.conversation.reasons import Code
from app.inspector.formats import counted, whole

Tone = Literal["plain", "over", "done", "bad"]
Plan = Mapping[str, Any]
"""Plan as it is stored: see `compaction/explain`."""
_WORD = re.compile(r"[a-z_]+")
_BY_WORD = {str(code): code for code in Code}
SOURCES = {
    "config": "set in the settings",
    "provider": "as its provider says",
    "learnt": "learnt from a refusal",
    "bundled": "from the bundled list of models",
    "default": "assumed: nobody says how large it is",
}
"""Sources of a window, in words."""


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
    came, went = plan["estimated"], plan["forwarded"]
    yield Explained(
        "Room",
        f"A window of {whole(plan['window'])}, {SOURCES.get(plan['window_source'], plan['window_source'])};"
        f" the prompt may use {whole(plan['limit'])}.",
    )
    over = came - plan["trigger"]
    how = f"{whole(over)} over the trigger of" if over > 0 else "within the trigger of"
    yield Explained(
        "Received", f"{whole(came)} tokens, {how} {whole(plan['trigger'])}.", "over" if over > 0 else "plain"
    )
    yield Explained(
        "Minimum",
        f"{whole(plan['floor'])} tokens of it are never touched: instructions, tools and the last user message."
        f" A compaction aims at {whole(plan['target'])}.",
    )
    yield from map(_tried, plan["steps"])
    if stands := _stands_for(parts):
        yield stands
    if quoted := sum(part["tokens"] for part in parts if part["kind"] in ("recalled", "exact_values", "state")):
        yield Explained("Quoted", f"{whole(quoted)} tokens of what the last user message is about.", "done")
    spared = came - went
    yield Explained("Went out", f"{whole(went)} tokens" + (f", {whole(spared)} fewer." if spared > 0 else "."), "done")


def _tried(step: Mapping[str, Any]) -> Explained:
    name, outcome = step["step"], step["outcome"]
    title, tone = _TRIED.get((name, outcome)) or _ENDED.get(outcome, ("Not summarised", "bad"))
    return Explained(title, step_in_words(step), tone)


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
_ENDED: Mapping[str, tuple[str, Tone]] = {"sent": ("Chosen", "done"), "refused": ("Not enough", "bad")}
"""Words and tone of each outcome of a view."""


def _stands_for(parts: Sequence[Mapping[str, Any]]) -> Explained | None:
    chunks = [part for part in parts if part["kind"] == "summarized"]
    if not chunks:
        return None
    covered = sum(part["last_index"] - part["first_index"] + 1 for part in chunks)
    tokens = sum(part["tokens"] for part in chunks)
    summaries = counted(len(chunks), "summary", "summaries")
    stand = "stands" if len(chunks) == 1 else "stand"
    return Explained("In it", f"{summaries} {stand} for {whole(covered)} messages, in {whole(tokens)} tokens.", "done")


def meanings(*reasons: str | None) -> list[tuple[str, str]]:
    """Reasons named in these lines, each once, with its meaning."""
    found = dict.fromkeys(word for reason in reasons for word in _WORD.findall(reason or ""))
    return [(word, _BY_WORD[word].meaning) for word in found if word in _BY_WORD]
