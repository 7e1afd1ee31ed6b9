"""`steno demo`: the same long conversation twice, straight to a provider and through Steno; no key, no network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from typer import secho

from app.http.loopback import serve
from app.main import create_app
from app.settings import load
from lab.replay.stage import counter
from lab.simulator import Simulator

MODEL = "gpt-4o"
WINDOW = 8_000
TURNS = 60
CHAT = "/v1/chat/completions"
ANSWER_SECONDS = 300.0

INSTRUCTIONS = "You are the mate of the sailing boat Alma and keep her logbook. Be brief and exact."
PORTS = ("Visby", "Klaipeda", "Gdansk", "Turku", "Tallinn", "Ventspils", "Kalmar", "Mariehamn", "Rostock", "Svaneke")
JOBS = (
    ("the forestay was loose", "a rigger tightened it and asked us to look again after the next strong wind"),
    ("the bilge pump stopped twice", "we cleaned the float switch and it has run without a fault since"),
    ("the chart plotter lost its position", "a new aerial went up on the stern rail and the fix is steady again"),
    ("the mainsail had a torn seam", "the sailmaker sewed it by hand and would not take money for it"),
    ("the water tank tasted of diesel", "we rinsed it three times and will drink from bottles until we are home"),
    ("fog kept us in port", "we used the day to paint the hatch and to write letters"),
)
_BERTH = re.compile(r"BTH-\d{4}")


def hold_conversation() -> int:
    """Holds the conversation and prints a line a turn. The exit status."""
    simulator = Simulator(window=WINDOW, models="any", reply=reply, count=counter(MODEL))
    with simulator.serve() as provider, _steno(f"{provider.url}/v1") as steno, ExitStack() as clients:
        direct, through = (
            Chat(clients.enter_context(httpx2.Client(base_url=url, timeout=ANSWER_SECONDS, trust_env=False)))
            for url in (provider.url, steno)
        )
        secho(f"A {TURNS}-turn conversation in a window of {WINDOW:,} tokens, with a simulated provider.\n")
        _line("turn", "direct", "Steno", "status", "what happened", bold=True)
        summaries: set[str] = set()
        for turn in range(1, TURNS + 1):
            cell, event, colour = "-", "", "green"
            if not direct.error:
                tokens = direct.say(question(turn))
                cell, event = (f"{tokens:,}", "") if tokens else ("refused", f"direct: {direct.error}")
            if not (tokens := through.say(question(turn))):
                _line(turn, cell, "-", "failed", through.error, fg="red")
                return 1
            if event:
                colour = "red"
            elif new := through.summaries - summaries:
                summaries |= new
                event = f"{_counted(len(new))} of older turns"
            _line(turn, cell, f"{tokens:,}", through.status, event, **({"fg": colour} if event else {}))
    remembered = _berth(1) in through.messages[-1]["content"]
    largest = f"largest prompt {through.largest:,} of {WINDOW:,} tokens"
    secho("")
    if direct.error:
        secho(f"Direct   {direct.turns} of {TURNS} turns, then {direct.error}.")
    secho(f"Steno    {through.turns} of {TURNS} turns, {_counted(len(summaries))} made, {largest}.")
    secho(f"Memory   Asked in turn {TURNS} for a number from turn 1, the model said:")
    secho(f"         {through.messages[-1]['content']}", fg="green" if remembered else "red")
    return 0 if remembered and summaries else 1


def question(turn: int) -> str:
    """Text of the user: a stop of a voyage, with a berth to remember; at the end, a question for the first one."""
    if turn == TURNS:
        return "Before we sail home: under which number was the berth of stop 1 booked?"
    port = PORTS[turn % len(PORTS)]
    trouble, cure = JOBS[turn % len(JOBS)]
    return (
        f"Stop {turn} is {port}. The berth is booked under {_berth(turn)} and costs {18 + turn * 7 % 23} euros a "
        f"night. On the way {trouble}; {cure}. The log read {turn * 37 % 90 + 12} miles, the wind went round to the "
        f"{('north', 'east', 'south', 'west')[turn % 4]} in the afternoon, and we were fast alongside at "
        f"{14 + turn % 7}:{turn * 11 % 60:02d}. There were {turn * 5 % 17 + 2} other boats, two of them bound for "
        "home, and one skipper lent us his pilot book, which has to go back to him before the end of the month. "
        "Please enter all that in the logbook, and tell me what is still to be "
        "done before we leave again."
    )


def reply(messages: Sequence[Mapping[str, Any]]) -> str:
    """Answer of the simulated model: it knows what its prompt says, and nothing else."""
    asked = messages[-1]["content"]
    if "berth of stop 1 " in asked:
        known = {berth for message in messages for berth in _BERTH.findall(str(message["content"]))}
        return f"It was booked under {_berth(1)}." if _berth(1) in known else "That is not in what I can read."
    stop, port = asked.split(" is ", 1)[0], asked.split(" is ", 1)[1].split(".", 1)[0]
    return (
        f"Entered: {stop}, {port}. Still to be done before we leave: fill the water tanks, pay the harbour master, "
        "take on bread and lamp oil, look at the weather chart for the next two days, and check every shackle from the "
        "masthead down to the chain plates. I have put the log, the wind and the time of arrival beside the entry. "
        "The spare sail is to be aired, the lamps want trimming, and the ship's papers should lie ready for the next "
        "port, because they were asked for twice on this coast and we had to look for them. "
        "If the wind holds we can sail with the first light; if it backs, we had better wait for the evening."
    )


@dataclass
class Chat:
    """A client that resends its whole history, as all do."""

    http: httpx2.Client
    messages: list[dict[str, str]] = field(default_factory=lambda: [{"role": "system", "content": INSTRUCTIONS}])
    turns: int = 0
    largest: int = 0
    """Tokens of the largest prompt, as the provider counted them."""
    status: str = ""
    summaries: set[str] = field(default_factory=set)
    """Ids of the summaries in the latest payload."""
    error: str = ""
    """Code of the error after which the conversation cannot go on."""

    def say(self, prompt: str) -> int:
        """Tokens of the prompt, once the answer has joined the history; 0 where the answer was an error."""
        messages = [*self.messages, {"role": "user", "content": prompt}]
        body = self.http.post(CHAT, json={"model": MODEL, "messages": messages}).json()
        if "error" in body:
            self.error = str(body["error"].get("code") or body["error"]["message"])
            return 0
        self.messages = [*messages, {"role": "assistant", "content": body["choices"][0]["message"]["content"]}]
        self.status, self.summaries = body.get("context_status", ""), set(body.get("context", {}).get("chunks", ()))
        tokens = int(body["usage"]["prompt_tokens"])
        self.turns, self.largest = self.turns + 1, max(self.largest, tokens)
        return tokens


@contextmanager
def _steno(upstream: str) -> Iterator[str]:
    """Steno's own address, on loopback. Its database is memory and ends with it."""
    settings = load(
        # The demo has a key of its own, and one provider: not those of the settings in effect.
        upstream={"base_url": upstream, "discover_windows": False, "api_key_env": None},
        models=[{"match": MODEL, "context_window": WINDOW}],
        storage={"url": "memory", "timeout_seconds": 5.0, "messages": True},
    )
    app = create_app(settings.model_copy(update={"upstreams": {}}))
    with serve(app, own_headers=False) as server:
        yield server.url


def _berth(stop: int) -> str:
    return f"BTH-{stop:02d}{(stop * 37 + 11) % 100:02d}"


def _counted(summaries: int) -> str:
    return "1 summary" if summaries == 1 else f"{summaries} summaries"


def _line(turn: object, direct: str, steno: str, status: str, event: str, **style: Any) -> None:
    secho(f"{turn:>4}  {direct:>7}  {steno:>6}  {status:<10}  {event}".rstrip(), **style)
