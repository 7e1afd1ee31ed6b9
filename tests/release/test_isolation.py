"""Isolation: several tenants with the same names, the same histories and each other's ids, at once. Nothing crosses.

A few hundred operations here; `make isolation OPERATIONS=10000` for more. Each tenant's own words (canaries) stand in
its histories, and so in its summaries; ids that Steno gives are remembered with whoever was given them. Whatever a
tenant is answered, or a provider is sent with its key, is searched for what belongs to another.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from lab.simulator import Simulator
from tests.e2e.histories import MODEL, turns
from tests.e2e.running import StartSteno

OPERATIONS = int(os.environ.get("OPERATIONS", "240"))
TENANTS, SIDE_BY_SIDE = 4, 6
NAMES = ("one", "two", "three")
LONG = 7
"""Turns of about 800 tokens; the trigger is at some 5,000."""
DOINGS = {
    "chat": 10, "read": 8, "guess": 6, "pin": 3, "search": 3, "stream": 2, "compact": 2, "force": 2, "plan": 2,
    "forget": 1,
}  # fmt: skip
"""By weight."""
_IDS = re.compile(rb"\b(?:chk|use|conv)_[0-9a-zA-Z-]+|\bctx-[0-9a-zA-Z]+")


@dataclass
class Person:
    number: int
    id: str = ""
    """The tenant's own."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Turns of its conversations so far."""

    @property
    def key(self) -> str:
        return f"sk-person-{self.number}"

    @property
    def canary(self) -> str:
        return f"canary{self.number}zebra"


class Watch:
    """Who was given what, and what came to whom."""

    def __init__(self, people: list[Person]) -> None:
        self._people = people
        self._owners: dict[str, int] = {}
        self.crossings: list[str] = []
        self.seen: Counter[str] = Counter()

    def ids(self) -> list[str]:
        """Everybody's, as far as they were told."""
        return list(self._owners)

    def check(self, person: Person, where: str, told: bytes, guesses: str = "") -> None:
        """`guesses` is what the person said: an error may quote it."""
        for other in self._people:
            for secret in (other.canary, other.key, other.id):
                if other is not person and secret and secret.encode() in told and secret not in guesses:
                    self.crossings.append(f"{where}: {person.number} was told {secret}")
        for found in _IDS.findall(told):
            id_ = found.decode()
            if id_ in guesses:
                continue
            self.seen[id_[:3]] += 1
            if self._owners.setdefault(id_, person.number) != person.number:
                self.crossings.append(f"{where}: {person.number} was told {id_} of {self._owners[id_]}")


class Actor:
    """Does one thing after the other, each as one of the people."""

    def __init__(self, client: httpx2.AsyncClient, watch: Watch, people: list[Person], seed: int) -> None:
        self._client = client
        self._watch = watch
        self._people = people
        self._random = random.Random(seed)
        self.done: Counter[str] = Counter()

    async def act(self) -> None:
        person, name = self._random.choice(self._people), self._random.choice(NAMES)
        own = f"/context/conversations/{name}"
        [doing] = self._random.choices(list(DOINGS), weights=list(DOINGS.values()))
        self.done[doing] += 1
        match doing:
            case "chat" | "stream":
                body = self._body(person, **({"stream": True} if doing == "stream" else {}))
                await self._ask(person, "POST", "/v1/chat/completions", body)
            case "compact" | "plan":
                await self._ask(person, "POST", f"/context/{doing}", self._body(person))
            case "force":
                await self._ask(person, "POST", f"{own}/compact", self._body(person))
            case "pin":
                method = self._random.choice(("PUT", "GET", "DELETE"))
                pins = {"indexes": [self._random.randrange(3)]} if method == "PUT" else None
                await self._ask(person, method, f"{own}/pins", pins)
            case "read":
                await self._ask(person, "GET", self._random.choice(_readable(own)))
            case "guess":
                # An id that somebody was told, perhaps the person itself, wherever an id can stand.
                ids = self._watch.ids()
                id_ = quote(self._random.choice(ids)) if ids else "none"
                await self._ask(person, "GET", self._random.choice(_guesses(own, id_)))
            case "search":
                await self._search(person)
            case "forget":
                await self._ask(person, "DELETE", self._random.choice(("/context/tenant", own, own)))

    def _talk(self, person: Person) -> tuple[str, list[Any]]:
        """A conversation that is long most of the time; every second one has the same words for all."""
        name = self._random.choice(NAMES)
        number = person.sizes[name] = person.sizes.get(name, self._random.choice((1, LONG))) + 1
        if number > 2 * LONG:
            number = person.sizes[name] = 2
        talk = turns(number, 400)
        if name != "one":
            for message in talk:
                message["content"] = f"{person.canary} {message['content']}"
        return name, talk

    def _body(self, person: Person, **members: Any) -> dict[str, Any]:
        name, talk = self._talk(person)
        named = {"conversation_id": name} if self._random.random() < 0.7 else {}
        return {"model": MODEL, "messages": talk, **named, **members}

    async def _ask(self, person: Person, method: str, path: str, body: Any = None) -> httpx2.Response:
        headers = {"authorization": f"Bearer {person.key}"}
        answered = await self._client.request(method, path, headers=headers, json=body)
        told = b"\n".join(b"%b: %b" % header for header in answered.headers.raw) + b"\n" + answered.content
        self._watch.check(person, f"{method} {path}", told, path)
        assert answered.status_code < 500 or answered.status_code == 503, (path, answered.text)
        self.done[f"status {answered.status_code}"] += 1
        return answered

    async def _search(self, person: Person) -> None:
        word = self._random.choice(["order", "question", "canary", *(other.canary for other in self._people)])
        found = await self._ask(person, "GET", f"/context/search?q={word}&limit=5")
        for other in self._people:
            if other is not person and word == other.canary and found.status_code == 200 and found.json()["data"]:
                self._watch.crossings.append(f"{person.number} found what {other.number} wrote")


def _readable(own: str) -> list[str]:
    lists = ["/context/conversations", *(f"{own}/{what}" for what in ("summaries", "usage", "messages"))]
    others = [own, f"{own}/coverage", f"{own}/handoff", "/context/tenant", "/context/models", "/context/calibration"]
    return [*(f"{path}?limit=2" for path in lists), *others]


def _guesses(own: str, id_: str) -> list[str]:
    parts = ("summaries", "usage", "coverage", "pins", "messages", "handoff")
    return [
        *(f"{own}/summaries/{id_}", f"/context/conversations/{id_}"),
        *(f"/context/conversations/{id_}/{what}" for what in parts),
        *(f"/context/{what}?after={id_}" for what in ("conversations", "calibration")),
        *(f"{own}/{what}?after={id_}" for what in ("summaries", "usage", "messages")),
        *(f"/context/search?q=order&after={id_}", f"/context/search?q={id_}"),
    ]


async def act_all(url: str, people: list[Person], watch: Watch) -> Counter[str]:
    done: Counter[str] = Counter()
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        for person in people:
            answered = await client.get("/context/tenant", headers={"authorization": f"Bearer {person.key}"})
            person.id = answered.json()["id"]

        async def run(seed: int) -> None:
            actor = Actor(client, watch, people, seed)
            for _ in range(-(-OPERATIONS // SIDE_BY_SIDE)):
                await actor.act()
            done.update(actor.done)

        async with asyncio.TaskGroup() as group:
            for seed in range(SIDE_BY_SIDE):
                group.create_task(run(seed))
    return done


def search_provider(simulator: Simulator, people: list[Person]) -> list[str]:
    """What the provider was sent with one's key and is another's."""
    owners = {f"Bearer {person.key}": person for person in people}
    found: list[str] = []
    for record in simulator.log:
        sender = owners.get(record.header("authorization") or "")
        found += [person.canary for person in people if person is not sender and person.canary.encode() in record.body]
    return found


@pytest.mark.timeout(max(120, OPERATIONS))
def test_nothing_of_one_tenant_reaches_another(steno: StartSteno, simulator: Simulator, shared_url: str) -> None:
    people = [Person(number) for number in range(TENANTS)]
    watch = Watch(people)
    started = steno(storage={"url": shared_url, "messages": True})
    done = asyncio.run(act_all(started.url, people, watch))
    assert watch.crossings == []
    assert search_provider(simulator, people) == []
    # That there was something to cross.
    by_kind: dict[str, int] = defaultdict(int, watch.seen)
    print({**done, **by_kind, "summaries": len(simulator.summaries)})  # noqa: T201 - shown with -s, by make isolation
    assert len(simulator.summaries) > OPERATIONS / 50
    assert done["status 200"] > OPERATIONS / 3
    assert done["status 404"] > OPERATIONS / 50
    assert by_kind["chk"] > OPERATIONS / 20
    assert by_kind["use"]
