"""Why a payload looks as it does, in words and numbers: from what came to what went out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from app.core.reasons import Code
from app.inspector.formats import whole, words

Tone = Literal["plain", "over", "done", "bad"]
Plan = Mapping[str, Any]
"""As it is stored: see `core/stages/account`."""
_WORD = re.compile(r"[a-z_]+")
_BY_WORD = {str(code): code for code in Code}
SOURCES = {
    "config": "set in the settings",
    "provider": "as its provider says",
    "learnt": "learnt from a refusal",
    "bundled": "from the bundled list of models",
    "default": "assumed: nobody says how large it is",
}
"""Where a window is from."""
VIEWS = {
    "least": "The smallest view that fits",
    "widest": "Every summary and mask in use",
    "fit": "Large texts shortened",
    "prune": "The oldest messages left out",
    "truncate": "Every text truncated",
    "unchanged": "The history as it came",
}
"""What may be sent, by the name of the step that tries it."""


class Explained(NamedTuple):
    title: str
    text: str
    tone: Tone = "plain"


def explained(plan: Plan | None, sent: int, parts: Sequence[Mapping[str, Any]]) -> list[Explained]:
    """`sent`: tokens of the latest request, for which nothing was due where there is no plan."""
    if plan is None:
        told = f"The client's {whole(sent)} tokens were under the trigger, and its bytes went out as they came."
        return [Explained("Nothing was due", told)]
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
    yield Explained("Came", f"{whole(came)} tokens, {how} {whole(plan['trigger'])}.", "over" if over > 0 else "plain")
    yield Explained(
        "Floor",
        f"{whole(plan['floor'])} tokens of it are never touched: instructions, tools and the last user message."
        f" A compaction aims at {whole(plan['target'])}.",
    )
    for step in plan["steps"]:
        yield _tried(step)
    if stands := _stands_for(parts):
        yield stands
    spared = came - went
    yield Explained("Went out", f"{whole(went)} tokens" + (f", {whole(spared)} fewer." if spared > 0 else "."), "done")


def _tried(step: Mapping[str, Any]) -> Explained:
    name, outcome, tokens, summaries = step["step"], step["outcome"], step["tokens"], step["summaries"]
    size = f"{whole(tokens)} tokens" if tokens is not None else ""
    because = f" Why: {step['reason']}." if step["reason"] else ""
    if name == "stored":
        held = f"With {_number(summaries)} that {'is' if summaries == 1 else 'are'} stored" if summaries else "As it is"
        fits = "that fits" if outcome == "fits" else "still too many"
        return Explained("Looked", f"{held} it takes {size}: {fits}.", "plain" if outcome == "fits" else "over")
    if name == "mask":
        done = "Answered tool results were cut to head and tail." if outcome == "set" else _MASK_PUT_OFF
        return Explained(
            "Masked" if outcome == "set" else "Mask put off", done, "done" if outcome == "set" else "plain"
        )
    if name == "summarise":
        if outcome == "made":
            return Explained("Summarised", f"{_number(summaries)} made, {size}.{because}", "done")
        if outcome in _OTHERWISE:
            title, text = _OTHERWISE[outcome]
            return Explained(title, f"{text}{because}")
        return Explained("Not summarised", f"The compaction came to this: {words(outcome)}.{because}", "bad")
    view = VIEWS.get(name, words(name))
    if outcome == "sent":
        return Explained("Chosen", f"{view}: {size}.{because}", "done")
    return Explained("Refused", f"{view}{': ' + size if size else ''}.{because}", "bad")


_OTHERWISE = {
    "awaited": ("Waited", "Another request was making the summary; this one waited for it."),
    "in_background": ("Put off", "The request still fitted well: the summary is made after its answer."),
    "takes_too_long": ("Went on", "The summary was not done in time: it is stored when it is, for later requests."),
    "lease_lost": ("Overtaken", "Another replica made the summary; this one looked for it."),
}
"""Outcomes that are no failure."""
_MASK_PUT_OFF = "It would have cost more than it saves over the next requests."


def _stands_for(parts: Sequence[Mapping[str, Any]]) -> Explained | None:
    chunks = [part for part in parts if part["kind"] == "summarized"]
    if not chunks:
        return None
    covered = sum(part["last_index"] - part["first_index"] + 1 for part in chunks)
    tokens = sum(part["tokens"] for part in chunks)
    stand = "stands" if len(chunks) == 1 else "stand"
    return Explained(
        "In it", f"{_number(len(chunks))} {stand} for {whole(covered)} messages, in {whole(tokens)} tokens.", "done"
    )


def _number(summaries: int) -> str:
    return "1 summary" if summaries == 1 else f"{summaries} summaries"


def meanings(*reasons: str | None) -> list[tuple[str, str]]:
    """The reasons' words in these lines, each once, with what it means."""
    found = dict.fromkeys(word for reason in reasons for word in _WORD.findall(reason or ""))
    return [(word, _BY_WORD[word].meaning) for word in found if word in _BY_WORD]
