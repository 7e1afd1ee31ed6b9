"""Twice the same agent: what Steno says that it saved, beside what it did.

    python -m lab.benchmarks.savings [--windows 8000,32000,200000] [--billing anthropic-5m,openai-0.1]

A coding agent that reads this repository holds its conversation through Steno, and again with compaction off, before a
provider with a window for all of it. The provider is the simulator, whose cache holds what recent prompts began with;
what it reports is paid for here by the prices of one that bills like Anthropic or like OpenAI, one token of a prompt
costing a millionth. From the run with Steno the ledger works out what the other one costs: that is held against its
bill.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import structlog

from lab.benchmarks import talks
from lab.formats.known import CHAT_COMPLETIONS, MESSAGES
from lab.replay.converting import converted
from lab.replay.recordings import Message, Recording
from lab.replay.stage import Stage, stage
from lab.simulator import Record, Simulator

MODEL, CLAUDE = "gpt-4o", "claude-sonnet-5"
COMPLETION = 5.0
"""Price of a token of an answer; one of a prompt costs 1."""
LARGER = 4_000_000
"""A window for the whole of any of them."""
WINDOWS: Mapping[int, int] = {8_000: 40_000, 32_000: 100_000, 200_000: 300_000}
"""Windows, each with the tokens that the agent's conversation has there in the end."""
ANSWERED_SECONDS, STORED_SECONDS = 600.0, 30.0
CONVERSATION = "agent"
KEY = {"authorization": "Bearer sk-bench"}


@dataclass(frozen=True, slots=True)
class Billing:
    """Prices of a provider's cache, as shares of the price of a prompt's token."""

    name: str
    cached: float
    written: float | None = None
    ttl: str = ""
    """Lifetime of marked prompts in the cache; empty if the provider keeps what it likes."""

    @property
    def model(self) -> str:
        return CLAUDE if self.ttl else MODEL

    @property
    def price(self) -> dict[str, Any]:
        """Price as it is set in Steno."""
        written = {} if self.written is None else {"written": self.written}
        return {"match": "*", "prompt": 1.0, "completion": COMPLETION, "cached": self.cached, **written}

    def bill(self, record: Record) -> float:
        """Price of a call in prompt tokens: from the provider's reports, not from what Steno reads of them."""
        usage = record.usage or {}
        if self.ttl:
            read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
            prompt = usage["input_tokens"] + self.cached * read + (self.written or 1.0) * written
            return float(prompt + COMPLETION * usage["output_tokens"])
        read = usage["prompt_tokens_details"]["cached_tokens"]
        return float(usage["prompt_tokens"] - (1 - self.cached) * read + COMPLETION * usage["completion_tokens"])


BILLINGS = (
    Billing("anthropic-5m", 0.1, 1.25, "5m"),
    Billing("anthropic-1h", 0.1, 2.0, "1h"),
    Billing("openai-0.1", 0.1),
    Billing("openai-0.25", 0.25),
    Billing("openai-0.5", 0.5),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One time through; costs are in prompt tokens."""

    requests: int
    summaries: int
    paid: float
    """Price paid by the provider's reports."""
    totals: Mapping[str, Any]
    """Totals of the ledger."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The same agent without Steno and with it."""

    billing: Billing
    window: int
    without: Run
    with_steno: Run

    @property
    def expected(self) -> float:
        """Cost of the run without Steno that the ledger expects from the run with it."""
        return float(self.with_steno.totals["cost"] + self.with_steno.totals["saved_cost"]) * 1e6

    @property
    def off_by(self) -> float:
        """Share of the bill."""
        return abs(self.expected / self.without.paid - 1)

    @property
    def too_large(self) -> int:
        """Requests that the window has no room for."""
        return int(self.with_steno.totals["too_large"]["requests"])

    def cells(self) -> tuple[str, ...]:
        saved = 1 - self.with_steno.paid / self.without.paid
        return (
            *(self.billing.name, f"{self.window:,}", f"{self.without.requests}", f"{self.too_large}"),
            *(f"{self.with_steno.summaries}", f"{self.without.paid:,.0f}", f"{self.with_steno.paid:,.0f}"),
            *(f"{saved:+.1%}", f"{self.expected:,.0f}", f"{self.off_by:.1%}"),
        )


HEADER = (
    *("billing", "window", "requests", "of them too large", "summaries", "paid without", "paid with", "saved"),
    *("without, by the ledger", "off by"),
)


def play(recording: Recording, billing: Billing, window: int, *, compacts: bool) -> Run:
    """The conversation, request by request."""
    # What the conversation has shown alone, without a number of requests to expect at least.
    compaction = {"cost_gate": {"requests": 1}} if compacts else {"enabled": False}
    priced = {"prices": [billing.price]}
    with stage(billing.model, window, compaction=compaction, settings=priced) as set_up:
        if isinstance(set_up.provider, Simulator):
            set_up.provider.reply = lambda _: "I see."  # The same in both runs.
        bodies = list(_bodies(recording, billing))
        with httpx2.Client(trust_env=False, timeout=ANSWERED_SECONDS, headers=_headers(billing)) as client:
            for body in bodies:
                path = "messages" if billing.ttl else "chat/completions"
                client.post(f"{set_up.base_url}/{path}", json=body).raise_for_status()
            totals = _totals(client, set_up, len(bodies))
    answered = [record for record in set_up.provider.log if record.status == 200 and record.usage]
    summaries = sum(record.kind == "summary" for record in answered)
    return Run(len(bodies), summaries, sum(map(billing.bill, answered)), totals)


def pairs(windows: Iterable[int], billings: Iterable[Billing]) -> Iterator[Pair]:
    for window in windows:
        for billing in billings:
            recording = agent(WINDOWS[window], billing)
            without = play(recording, billing, LARGER, compacts=False)
            yield Pair(billing, window, without, play(recording, billing, window, compacts=True))


def agent(tokens: int, billing: Billing, root: Path = talks.ROOT) -> Recording:
    """Conversation of an agent, of about `tokens` tokens in the end, in the format of this provider; it reads files
    below `root`."""
    made = talks.agent(tokens, lambda text: len(text) // 4, root=root)
    return converted(made, MESSAGES if billing.ttl else CHAT_COMPLETIONS)


def _bodies(recording: Recording, billing: Billing) -> Iterator[dict[str, Any]]:
    for end in recording.requests:
        messages = recording.messages[:end]
        body = {**recording.beside, "model": billing.model}
        if billing.ttl:
            yield {**body, "max_tokens": 1_000, "messages": [*messages[:-1], _marked(messages[-1], billing.ttl)]}
        else:
            yield {**body, "messages": messages}


def _marked(message: Message, ttl: str) -> Message:
    """The message with the mark up to which the provider is to keep the prompt, as agents move it along."""
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    return {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral", "ttl": ttl}}]}


def _headers(billing: Billing) -> Mapping[str, str]:
    own = {"x-api-key": "sk-bench", "anthropic-version": "2023-06-01"} if billing.ttl else KEY
    return {**own, "x-conversation-id": CONVERSATION}


def _totals(client: httpx2.Client, set_up: Stage, calls: int) -> Mapping[str, Any]:
    """Totals of the conversation, once all of it is in the ledger."""
    address = f"{set_up.base_url.removesuffix('/v1')}/context/conversations/{CONVERSATION}/usage"
    deadline = time.monotonic() + STORED_SECONDS
    while True:
        totals: Mapping[str, Any] = client.get(address).raise_for_status().json()["totals"]
        if totals["calls"] == calls or time.monotonic() > deadline:
            return totals
        time.sleep(0.05)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What Steno says that it saved, beside what it did.")
    parser.add_argument("--windows", default=",".join(map(str, WINDOWS)))
    parser.add_argument("--billing", default=",".join(billing.name for billing in BILLINGS))
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    billings = [billing for billing in BILLINGS if billing.name in options.billing.split(",")]
    print(f"| {' | '.join(HEADER)} |")
    print(f"|---|{'---:|' * (len(HEADER) - 1)}")
    for pair in pairs(map(int, options.windows.split(",")), billings):
        print(f"| {' | '.join(pair.cells())} |", flush=True)


if __name__ == "__main__":
    main()
