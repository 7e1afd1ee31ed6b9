"""Explanation of a payload in words: the numbers of its plan, and each tried step with its outcome."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from app.conversation.reasons import Code
from app.inspector.pages import counted, whole

Tone = Literal["plain", "over", "done", "bad"]
Plan = Mapping[str, Any]
"""Stored plan: see `account_of` in `compaction/fallback`."""
SOURCES = {
    "config": "set in the settings",
    "provider": "as its provider says",
    "learnt": "learnt from a refusal",
    "bundled": "from the bundled list of models",
    "default": "assumed: its size is not known",
}
"""Displayed words for the sources of a window."""
_BY_WORD = {str(code): code for code in Code}
_STEPS: Mapping[str, tuple[str, Tone, str]] = {
    "stored.fits": ("Checked", "plain", "With {summaries} of those stored the prompt has {tokens} tokens: enough"),
    "stored.too_large": (
        "Checked",
        "over",
        "With {summaries} of those stored the prompt has {tokens} tokens: too many",
    ),
    "mask.set": ("Masked", "done", "Results of tools that the assistant has answered are shortened from here on"),
    "mask.put_off": ("Mask put off", "plain", "Shortening results of tools would cost more than it saves"),
    "summarise.made": ("Summarised", "done", "Made {summaries}, {tokens} tokens in all"),
    "summarise.awaited": (
        "Waited",
        "plain",
        "Another request was making the summary that was due; this one waited for it",
    ),
    "summarise.in_background": (
        "Put off",
        "plain",
        "A summary is due: it is made after the answer; this request went without",
    ),
    "summarise.takes_too_long": ("Went on", "plain", "A summary is still being made: the request went on without it"),
    "summarise.lease_lost": ("Overtaken", "plain", "A summary was being made, and another process made it first"),
    "summarise.failed": ("Not summarised", "bad", "A summary was due and could not be made"),
    "summarise.deleted": ("Not summarised", "bad", "The conversation was deleted while its summary was made"),
    "summarise.store_away": ("Not summarised", "bad", "The database did not answer"),
    "summarise.nothing_to_summarise": ("Not summarised", "bad", "There is nothing left that a summary could stand for"),
    "summarise.not_begun": ("Not summarised", "bad", "A summary was due, and none was begun"),
    "least.sent": ("Chosen", "done", "The smallest change that suffices was sent ({tokens} tokens)"),
    "least.refused": ("Not enough", "bad", "The smallest change under the trigger was not enough ({tokens} tokens)"),
    "widest.sent": ("Chosen", "done", "Every stored summary and mask was used ({tokens} tokens)"),
    "widest.refused": ("Not enough", "bad", "Using every stored summary and mask was not enough ({tokens} tokens)"),
    "fit.sent": ("Chosen", "done", "Large texts were shortened ({tokens} tokens)"),
    "fit.refused": ("Not enough", "bad", "Shortening large texts was not enough ({tokens} tokens)"),
    "prune.sent": ("Chosen", "done", "The oldest messages were left out, and the rest was sent ({tokens} tokens)"),
    "prune.refused": ("Not enough", "bad", "Leaving out the oldest messages was not enough ({tokens} tokens)"),
    "truncate.sent": ("Chosen", "done", "All that was left was cut short, and that was sent ({tokens} tokens)"),
    "truncate.refused": ("Not enough", "bad", "Cutting all that was left was not enough ({tokens} tokens)"),
    "without_summaries.sent": (
        "Chosen",
        "done",
        "Beside summaries too little fitted: the history was cut ({tokens} tokens)",
    ),
    "without_summaries.refused": ("Not enough", "bad", "Cutting the whole history was not enough ({tokens} tokens)"),
    "unchanged.sent": ("Chosen", "done", "The request was sent as it came ({tokens} tokens)"),
}
"""Title, tone and sentence for each step and outcome."""


class Explained(NamedTuple):
    title: str
    text: str
    tone: Tone = "plain"


def explained(plan: Plan | None, sent: int, parts: Sequence[Mapping[str, Any]]) -> list[Explained]:
    """Explain a payload. `sent`: tokens of the latest request; `plan`: None if no compaction was due."""
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
    yield from map(_step, plan["steps"])
    if chunks := [part for part in parts if part["kind"] == "summarized"]:
        covered = sum(part["last_index"] - part["first_index"] + 1 for part in chunks)
        stand = f"{counted(len(chunks), 'summary', 'summaries')} {'stands' if len(chunks) == 1 else 'stand'}"
        tokens = whole(sum(part["tokens"] for part in chunks))
        yield Explained("In it", f"{stand} for {whole(covered)} messages, in {tokens} tokens.", "done")
    if quoted := sum(part["tokens"] for part in parts if part["kind"] in ("recalled", "exact_values", "state")):
        yield Explained("Quoted", f"{whole(quoted)} tokens of what the last user message is about.", "done")
    fewer = f", {whole(came - went)} fewer." if came > went else "."
    yield Explained("Went out", f"{whole(went)} tokens{fewer}", "done")


def _step(step: Mapping[str, Any]) -> Explained:
    name, number = f"{step['step']}.{step['outcome']}", step["summaries"]
    title, tone, text = _STEPS.get(name, (step["step"], "plain", step["outcome"]))  # For steps of another release.
    summaries = "one summary" if number == 1 else f"{number or 'no'} summaries"
    text = text.format(summaries=summaries, tokens=whole(step["tokens"]))
    return Explained(title, f"{text}: {step['reason']}." if step["reason"] else f"{text}.", tone)


def meanings(*reasons: str | None) -> list[tuple[str, str]]:
    """Return the reasons that occur in these texts, each once, with their meanings."""
    found = dict.fromkeys(word for reason in reasons for word in re.findall(r"[a-z_]+", reason or ""))
    return [(word, _BY_WORD[word].meaning) for word in found if word in _BY_WORD]
