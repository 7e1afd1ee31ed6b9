"""The plan in words: how a payload came about, as sentences for people. Its numbers and codes stand beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ATTEMPTS: Mapping[str, str] = {
    "failed": "A summary was due and could not be made",
    "lease_lost": "A summary was being made, and another process made it first",
    "deleted": "A summary was being made when the conversation was deleted",
    "store_away": "The database did not answer",
    "takes_too_long": "A summary is still being made: the request went on without it",
    "awaited": "Another request was making the summary that was due, and this one waited for it",
    "in_background": "A summary is due: it is made after the answer, and this request went on without it",
    "nothing_to_summarise": "A summary was due, but there is nothing left that one could stand for",
    "not_begun": "A summary was due, and none was begun",
}
_SENT: Mapping[str, str] = {
    "least": "The smallest change that suffices was sent",
    "widest": "Every stored summary and mask was used, and that was sent",
    "fit": "Large texts were shortened, and that was sent",
    "prune": "The oldest messages were left out, and the rest was sent",
    "truncate": "All that was left was cut short, and that was sent",
    "without_summaries": "The summaries left too little room: the history was cut and sent without them",
    "unchanged": "The request was sent as it came",
}
_REFUSED: Mapping[str, str] = {
    "least": "The smallest change that stays under the trigger was not enough",
    "widest": "Using every stored summary and mask was not enough",
    "fit": "Shortening large texts was not enough",
    "prune": "Leaving out the oldest messages was not enough",
    "truncate": "Cutting all that was left was not enough",
    "without_summaries": "Cutting the whole history, without summaries, was not enough",
}


def in_words(plan: Mapping[str, Any]) -> list[str]:
    """Sentences for a plan: the numbers first, then each step, then the outcome."""
    sent = f"The provider was sent {plan['forwarded']:,} tokens ({plan['context_status']})"
    return [*_numbers(plan), *map(step_in_words, plan["steps"]), _because(sent, plan["reason"])]


def _numbers(plan: Mapping[str, Any]) -> list[str]:
    came = f"The request came with about {plan['estimated']:,} tokens."
    window = f"The window has {plan['window']:,} tokens ({plan['window_source']})"
    limits = (
        f"{window}, of which the prompt may use {plan['limit']:,}. Over {plan['trigger']:,} a compaction is due; it"
        f" aims at {plan['target']:,}, and nothing can bring the prompt under {plan['floor']:,}."
    )
    return [came, limits]


def step_in_words(step: Mapping[str, Any]) -> str:
    """Sentence for one step of a plan."""
    name, outcome = step["step"], step["outcome"]
    if name == "stored":
        suffices = "enough" if outcome == "fits" else "over the trigger"
        return f"With {_summaries(step)} of those stored the prompt has {step['tokens']:,} tokens: {suffices}."
    if name == "mask":
        if outcome == "set":
            return "Results of tools that the assistant has answered are shortened from here on."
        return "Shortening results of tools was put off: it would cost more than it saves."
    if name == "summarise":
        if outcome == "made":
            was = "was" if step["summaries"] == 1 else "were"
            return f"{_summaries(step).capitalize()} of {step['tokens'] or 0:,} tokens in all {was} made."
        return _because(_ATTEMPTS.get(outcome, outcome), step["reason"])
    sentences = _SENT if outcome == "sent" else _REFUSED
    return _because(f"{sentences.get(name, name)} ({step['tokens']:,} tokens)", step["reason"])


def _because(text: str, reason: str | None) -> str:
    return f"{text}: {reason}." if reason else f"{text}."


def _summaries(step: Mapping[str, Any]) -> str:
    number = step["summaries"]
    return "one summary" if number == 1 else f"{number or 'no'} summaries"
