"""Clients that keep conversations growing: every turn is sent through several processes at once.

A conversation is two branches under one name that part after a few turns, so that what was made for one of them lies
where the other would find it by position; and now and then a client goes back some turns and goes on otherwise. Half
of the conversations are named by a header, the others are recognised by their history.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Protocol

import httpx2
import msgspec

CLIENT_SECONDS = 100.0
"""More than a request may take: 60 s for somebody else's summary, after a pause of 20 s."""
BRANCHES = "ab"
"""Of each conversation."""
LONGEST = 24
"""Turns, after which another conversation begins."""
GOES_BACK = 0.05
WITH_TOOL = 0.2
AT_ONCE = (2, 2, 3, 4)
USER_WORDS, ANSWER_WORDS = 300, 200
"""About 700 tokens a turn: a summary is due after eight turns, and then after every fourth or so."""
PAUSE_SECONDS = (0.2, 0.9)

_UNREACHED = (b'"upstream_unreachable"', b'"upstream_disconnected"')

WORDS = (
    *("harbour", "lantern", "copper", "meadow", "winter", "ledger", "orchard", "signal", "granite", "ferry", "candle"),
    *("willow", "barrel", "compass", "thunder", "velvet", "anchor", "saddle", "mirror", "falcon", "ribbon", "marble"),
    *("cedar", "tunnel", "violin", "beacon", "pepper", "canyon", "basket", "shadow"),
)


class Place(Protocol):
    """Where requests go: a process, or a balancer in front of several."""

    number: int
    url: str
    deaths: int
    naps: int

    @property
    def up(self) -> bool: ...


@dataclass(slots=True)
class Asked:
    """One request as its client knows it."""

    tag: str
    """Sent as `user`, by which the provider's log tells the payloads apart."""
    conversation: str
    body: bytes
    process: int
    answered: bool = False
    began: float = 0.0
    done_at: float = 0.0
    """By the monotonic clock, as `began`."""


@dataclass(slots=True)
class Talkers:
    """All clients, until they are told to stop."""

    replicas: Sequence[Place]
    random: Random
    asked: list[Asked] = field(default_factory=list)
    """Finished and not judged yet."""
    requests: int = 0
    excused: int = 0
    """Requests that failed with the process that was killed meanwhile."""
    overslept: int = 0
    """Requests whose process was paused past its own deadlines for the provider, and said so."""
    errors: list[str] = field(default_factory=list)
    """All other failures."""
    histories: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    """The latest history of each branch that goes on."""
    _tags: count[int] = field(default_factory=lambda: count(1))
    _under_way: set[asyncio.Task[Asked]] = field(default_factory=set)
    _stopped: bool = False

    async def talk(self, conversations: int) -> None:
        """Keeps so many conversations going until `stop`."""
        # A connection for each request: what is sent on an idle one may meet the server's closing of it, most of all
        # when a process wakes from a pause. That is so with every server, and clients repeat the request.
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=CLIENT_SECONDS, trust_env=False, limits=limits) as client:
            names = count(1)
            async with asyncio.TaskGroup() as group:
                for _ in range(conversations):
                    group.create_task(self._keep_going(client, names))
            while self._under_way:
                await asyncio.wait(set(self._under_way))

    def stop(self) -> None:
        """After the turns that are under way."""
        self._stopped = True

    async def ask_everywhere(self, history: tuple[bytes, ...], name: str) -> list[Asked]:
        """The same request through every process, one after the other."""
        async with httpx2.AsyncClient(timeout=CLIENT_SECONDS, trust_env=False) as client:
            return [await self._ask(client, replica, name, history) for replica in self.replicas]

    async def _keep_going(self, client: httpx2.AsyncClient, names: count[int]) -> None:
        while not self._stopped:
            name = f"c{next(names)}"
            shared = [_instructions(name)]
            for turn in range(self.random.randint(2, 5)):
                shared += self._turn(f"{name} {turn}")
            async with asyncio.TaskGroup() as group:
                for branch in BRANCHES:
                    group.create_task(self._branch(client, name, branch, list(shared)))

    async def _branch(self, client: httpx2.AsyncClient, name: str, branch: str, history: list[bytes]) -> None:
        starts: list[int] = []
        for number in count():
            if self._stopped:
                return
            if len(starts) == LONGEST:
                break
            told = f"{name}{branch} {number}"
            starts.append(len(history))
            history.append(_message("user", self._text(told, USER_WORDS)))
            self.histories[f"{name} {branch}"] = tuple(history)
            await self._first_answer(client, name, tuple(history))
            history += self._answer(told)
            if len(starts) > 3 and self.random.random() < GOES_BACK:
                starts = starts[: -self.random.randint(1, 3)]
                del history[starts.pop() :]
            await asyncio.sleep(self.random.uniform(*PAUSE_SECONDS))
        del self.histories[f"{name} {branch}"]

    async def _first_answer(self, client: httpx2.AsyncClient, name: str, history: tuple[bytes, ...]) -> None:
        """Others may still be on their way when the conversation goes on: their histories are old by then."""
        while not self._stopped:
            up = [replica for replica in self.replicas if replica.up]
            chosen = self.random.sample(up, min(len(up), self.random.choice(AT_ONCE)))
            waiting = {asyncio.create_task(self._ask(client, replica, name, history)) for replica in chosen}
            self._under_way |= waiting
            for task in waiting:
                task.add_done_callback(self._under_way.discard)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if any(task.result().answered for task in done):
                    return
            await asyncio.sleep(0.2)

    async def _ask(self, client: httpx2.AsyncClient, replica: Place, name: str, history: Sequence[bytes]) -> Asked:
        number = next(self._tags)
        tag, stream = f"r{number}", number % 2 == 0
        head = {"model": "gpt-4o", "user": tag, "stream": stream}
        body = msgspec.json.encode(head)[:-1] + b',"messages":[' + b",".join(history) + b"]}"
        asked = Asked(tag, name, body, replica.number, began=time.monotonic())
        self.requests += 1
        url, deaths, naps = replica.url, replica.deaths, replica.naps
        named = {"x-session-id": name} if int(name[1:]) % 2 else {}
        headers = {"content-type": "application/json", "authorization": "Bearer sk-chaos", **named}
        try:
            answer = await client.post(f"{url}/v1/chat/completions", content=body, headers=headers)
        except httpx2.HTTPError as error:
            if replica.deaths > deaths or not url:
                self.excused += 1
            else:
                self.errors.append(f"{tag} through {replica.number}: {type(error).__name__}: {error}")
        else:
            ended = not stream or answer.content.rstrip().endswith(b"data: [DONE]")
            asked.answered = answer.status_code == 200 and ended
            if not asked.answered and (naps % 2 or replica.naps > naps) and _is_unreached(answer):
                self.overslept += 1
            elif not asked.answered:
                self.errors.append(f"{tag} through {replica.number}: {answer.status_code}: {answer.text[-300:]}")
        asked.done_at = time.monotonic()
        self.asked.append(asked)
        return asked

    def _turn(self, told: str) -> list[bytes]:
        return [_message("user", self._text(told, USER_WORDS)), *self._answer(told)]

    def _answer(self, told: str) -> list[bytes]:
        answer = _message("assistant", self._text(f"answer to {told}", ANSWER_WORDS))
        if self.random.random() >= WITH_TOOL:
            return [answer]
        call = f"call_{told.replace(' ', '_')}"
        function = {"name": "look_up", "arguments": msgspec.json.encode({"berth": told}).decode()}
        called = {"role": "assistant", "content": None}
        called_with = {**called, "tool_calls": [{"id": call, "type": "function", "function": function}]}
        result = {"role": "tool", "tool_call_id": call, "content": self._text(f"found for {told}", 120)}
        return [msgspec.json.encode(called_with), msgspec.json.encode(result), answer]

    def _text(self, told: str, words: int) -> str:
        """No two are alike, or a summary of one would do for the other."""
        number = self.random.getrandbits(40)
        return f"Of {told}, number {number:x}: {' '.join(self.random.choices(WORDS, k=words))}."


def _is_unreached(answer: httpx2.Response) -> bool:
    """Whether Steno says that it could not reach the provider."""
    return answer.status_code == 502 and any(code in answer.content for code in _UNREACHED)


def _instructions(name: str) -> bytes:
    return _message("system", f"You are the harbour master's clerk and keep book {name}. Be brief and exact.")


def _message(role: str, content: str) -> bytes:
    return msgspec.json.encode({"role": role, "content": content})
