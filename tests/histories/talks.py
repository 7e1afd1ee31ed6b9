"""Hostile talks: what clients and tools say over several turns, in no wire format, drawn from a seed.

What makes them hostile: tool results with texts beside them, calls side by side, results that are far too large, tools
whose results are texts of the user, sentences in them that sound like the user's rules, blocks of instructions that a
client puts into the user's messages and later brings up to date, answers asked for that no window holds, pictures,
empty contents, halves of surrogate pairs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import yaml

from app.settings.presets import PRESET_NAMES
from lab.replay.stage import MAY_REFUSE

FORMATS = ("chat_completions", "messages", "responses", "gemini")
WINDOWS = (4_000, 8_000, 16_000)
MOST_REQUESTS = 14
MOST_WINDOWS = 4
"""What a talk comes to in all, in windows."""
USUAL_OUTPUT = 300
MIN_LIMIT = 3_500
"""Tokens of a limit of which a tenth holds the client's instructions, also where a model counts half as many more."""
EXACT_EVERY = 40
"""Words between two exact values."""
LONE = "\ud83d"
"""Half of a character."""
READS_WHOLE = frozenset(name for name in PRESET_NAMES if name in MAY_REFUSE or "fading" in name)
"""Presets that cut no single result down to what the window holds."""

_FILLER = (
    "the parcel of the customer was sent to the old address and the clerk wrote down what was agreed so that nobody has"
    " to ask again before it returns to the warehouse where another colleague takes it over"
)


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    arguments: dict[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    text: str
    mark: str = ""
    """A word by which it is known again, at the beginning of its text; empty where it has no text."""
    picture: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What the assistant does, and what comes of it."""

    said: str
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    """In the order in which they come: one for each call."""
    order: tuple[int, ...] = ()
    """Which call each result answers."""
    told: tuple[str, ...] = ()
    """Where tools speak through the user: the parts of his message."""
    mark: str = ""
    """In `told`."""
    reminder: str = ""
    """What the client says beside the results."""
    interjected: str = ""
    """What the user says beside them."""


@dataclass(frozen=True, slots=True)
class Turn:
    question: str
    """As it is sent: the sender's own words, or with what his client puts around them."""
    mark: str
    answer: str
    blocks: tuple[tuple[str, str], ...] = ()
    """Instructions that the client puts before the question: kind and text."""
    reminder: str = ""
    steps: tuple[Step, ...] = ()
    placed: str = ""
    """An instruction among the messages, behind the question."""
    picture: bool = False
    served: str = ""
    """What a tool of the provider's own found before the answer."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What holds for the whole of a talk."""

    number: int
    format: str
    preset: str
    window: int
    style: str
    """`tools`, `thinking`, `items`, or the text protocol."""
    alternating: bool
    """The provider refuses two messages of the user in a row."""
    output: int
    """Tokens asked for."""
    counts_answer: bool
    """Whether the provider wants these to fit beside the prompt."""
    halves: bool
    """Some texts hold half of a surrogate pair."""
    imitates: bool
    """Tools also say what looks like the client's own marks."""
    imperative: str
    """The sentence in its results that sounds like a rule."""

    @property
    def may_overflow(self) -> bool:
        return self.preset in MAY_REFUSE

    def __str__(self) -> str:
        traits = [self.format, f"preset {self.preset}", f"window {self.window}", self.style]
        traits += [name for name in ("alternating", "halves", "imitates") if getattr(self, name)]
        asked = f"{self.output} tokens asked for" + (" beside the prompt" if self.counts_answer else "")
        return ", ".join([*traits, asked])


def traits_of(seed: int, number: int) -> Traits:
    """Format and preset by the number, so that any few in a row hold all; the rest by lot."""
    random = Random(f"{seed} {number} traits")
    format_ = FORMATS[number % len(FORMATS)]
    protocols = [*PROTOCOLS]
    style = random.choice(
        {
            "chat_completions": ["tools"] * 6 + protocols,
            "messages": ["tools"] * 7 + ["thinking"] * 6 + protocols,
            "responses": ["tools"] * 5 + ["thinking"] * 4 + ["items"] * 4 + protocols,
            "gemini": ["tools"] * 6 + protocols,
        }[format_]
    )
    window = random.choice(WINDOWS)
    share = random.choice([0, 0, 0, 0, 0, 0.4, 1, 4])
    strict = format_ != "gemini" and style not in ("thinking", "items") and random.random() < 0.15
    return Traits(
        number=number,
        format=format_,
        preset=PRESET_NAMES[number // len(FORMATS) % len(PRESET_NAMES)],
        window=window,
        style=style,
        alternating=strict,
        output=round(share * window) or USUAL_OUTPUT,
        counts_answer=share < 1 and random.random() < 0.5 and format_ != "gemini",
        halves=random.random() < 0.1,
        imitates=random.random() < 0.1,
        imperative=random.choice(SENTENCES),
    )


@dataclass(frozen=True, slots=True)
class Talk:
    seed: int
    """Its own, among those of all talks."""
    traits: Traits
    turns: Sequence[Turn]


def talk_of(seed: int, number: int) -> Talk:
    traits = traits_of(seed, number)
    return Talk(
        Random(f"{seed} {number}").randrange(1 << 40), traits, _Writer(Random(f"{seed} {number} turns"), traits).turns()
    )


@dataclass
class _Writer:
    random: Random
    traits: Traits
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _spent: int = 0
    _requests: int = 0
    _mark: str = ""

    def turns(self) -> list[Turn]:
        turns: list[Turn] = []
        blocks = self._kinds()
        while self._requests < MOST_REQUESTS and self._spent < MOST_WINDOWS * self.traits.window:
            newer = () if turns and self.random.random() < 0.7 else tuple((k, self._block(k)) for k in blocks)
            turns.append(self._turn(newer, first=not turns))
        return turns

    def _kinds(self) -> list[str]:
        """Of the blocks of instructions: none where a tenth of the limit would not hold them."""
        if self.random.random() < 0.4 or 0 < self.traits.window - self.traits.output < MIN_LIMIT:
            return []
        kinds = {"messages": ["claude_md"], "responses": ["agents_md", "environment"]}.get(self.traits.format)
        return kinds or self.random.choice([["claude_md"], ["agents_md", "environment"]])

    def _turn(self, blocks: tuple[tuple[str, str], ...], first: bool) -> Turn:
        style, random = self.traits.style, self.random
        question = self._marked(f"What about {self._file()} and {self._order()}?", 0.01, 0.05)
        mark, agent = self._mark, style in PROTOCOLS
        if agent:
            protocol = PROTOCOLS[style]
            asked = protocol.asked if first else protocol.asked_later or protocol.asked
            question = asked.format(question=question, document=f"{mark} {self._document(0.02, 0.06)}")
        most = 6 if random.random() < 0.4 else 2
        steps = [self._step() for _ in range(random.randint(1 if agent else 0, most))]
        if not agent and random.random() < 0.3:  # The user speaks beside a large result, and then it goes on for long.
            steps += [self._step(interrupted=True), *(self._step() for _ in range(random.randint(5, 9)))]
        self._requests += 1 + len(steps)
        may_be_placed = not (self.traits.alternating and self.traits.format == "chat_completions")
        return Turn(
            question=self._odd(question),
            mark=mark,
            answer=self._marked("That is done:", 0.01, 0.06),
            blocks=blocks,
            reminder=self._reminder() if random.random() < 0.2 and not agent else "",
            steps=tuple(steps),
            placed=f"It is minute {next(self._numbers)}." if may_be_placed and random.random() < 0.12 else "",
            picture=not agent and random.random() < 0.08,
            served=self._text(0.01, 0.06) if style == "tools" and random.random() < 0.1 else "",
        )

    def _step(self, interrupted: bool = False) -> Step:
        random, traits = self.random, self.traits
        if traits.style in PROTOCOLS:
            said = self._marked("I have to look at that:", 0.002, 0.01)
            text = self._marked("", 0, 0) + self._document(0.03, 0.15)
            told = (part.format(name=self._file(), text=text) for part in PROTOCOLS[traits.style].told)
            return Step(said, told=tuple(map(self._odd, told)), mark=self._mark)
        number = random.choice([1, 1, 2, 3])
        calls = tuple(self._call() for _ in range(number))
        bounds = (0.02, 0.12)
        if traits.preset not in READS_WHOLE:
            bounds = (0.2, 0.4) if interrupted else (0.5, 1.1) if random.random() < 0.06 else bounds
        results = tuple(self._result(*bounds) for _ in calls)
        order = tuple(random.sample(range(number), number))
        beside = random.random()
        return Step(
            said=self._text(0.001, 0.01) if random.random() < 0.5 else "",
            calls=calls,
            results=results,
            order=order,
            reminder=self._reminder() if beside < 0.3 else "",
            interjected=self._marked(f"By the way, what did order {self._order()} cost?", 0.002, 0.01)
            if interrupted or 0.2 < beside < 0.35
            else "",
        )

    def _call(self) -> Call:
        long = self._text(0.02, 0.08) if self.random.random() < 0.1 else ""
        arguments = {"path": self._file(), **({"content": self._odd(long)} if long else {})}
        return Call(
            f"toolu_{self.traits.number}_{next(self._numbers)}", "write_file" if long else "read_file", arguments
        )

    def _result(self, least: float, most: float) -> Result:
        if self.random.random() < 0.06:
            return Result("")
        text = self._marked("", 0, 0)
        return Result(self._odd(text + self._document(least, most)), self._mark, self.random.random() < 0.06)

    def _marked(self, text: str, least: float, most: float) -> str:
        self._mark = f"mk{self.traits.number}x{next(self._numbers)}z"
        return f"{self._mark} {text} {self._text(least, most)}".rstrip() + " "

    def _reminder(self) -> str:
        told = self.random.choice(["The todo list is empty.", "Do not mention this to the user.", "It was a hook."])
        return f"<system-reminder>\n{told} {self._text(0.002, 0.01)}\n</system-reminder>"

    def _block(self, kind: str) -> str:
        version = f"mk{self.traits.number}x{next(self._numbers)}z"
        return BLOCKS[kind].format(version=version, text=self._text(0.002, 0.006))

    def _document(self, least: float, most: float) -> str:
        """Somebody else's text, with a sentence in it that sounds like the user's rule."""
        shapes = [*DOCUMENTS, *(IMITATIONS if self.traits.imitates else ())]
        before, after = self._text(least / 2, most / 2), self._text(least / 2, most / 2)
        shape = self.random.choice(shapes)
        if shape == _JSON:
            return json.dumps({"id": self._file(), "text": before, "note": self.traits.imperative, "more": after})
        return shape.format(before=before, after=after, sentence=self.traits.imperative)

    def _order(self) -> str:
        return f"ORD-{self.random.randint(1000, 9999)}"

    def _file(self) -> str:
        return f"{self.random.choice(['src', 'docs', 'lib'])}/part_{self.random.randint(1, 99)}.md"

    def _odd(self, text: str) -> str:
        return f"{text}{LONE}." if self.traits.halves and self.random.random() < 0.3 else text

    def _text(self, least: float, most: float) -> str:
        """Of a size between these shares of the window, about a token a word."""
        words = round(self.random.uniform(least, most) * self.traits.window)
        self._spent += words
        start = self.random.randrange(30)
        said = [*islice(cycle(_FILLER.split()), start, start + words)]
        for place in range(EXACT_EVERY, words, EXACT_EVERY):
            said[place] = f"order {self._order()} costs {self.random.randint(10, 999)}.50 EUR,"
        return " ".join(said)


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a client writes what its tools said where it only has texts."""

    told: Sequence[str]
    """The parts of the user's message, with places for a file's name and its text."""
    asked: str = "{question}"
    """The user's own words as they are sent, with places for them and for a document beside them."""
    asked_later: str = ""
    """The same, for all but the first; empty where it is no different."""


_TEXTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("talks.yaml").read_text("ascii"))
SENTENCES: Sequence[str] = _TEXTS["sentences"]
DOCUMENTS: Sequence[str] = _TEXTS["documents"]
IMITATIONS: Sequence[str] = _TEXTS["imitations"]
BLOCKS: Mapping[str, str] = _TEXTS["blocks"]
PROTOCOLS = {name: Protocol(**protocol) for name, protocol in _TEXTS["protocols"].items()}
_JSON = "{before}{sentence}{after}"
"""Stands for a document in JSON."""


def without_halves(text: str) -> str:
    """As a provider reads it that takes half of a pair for U+FFFD."""
    return text.replace(LONE, "\ufffd")
