"""Limits that refusals and answers taught: the one that a refusal named, until a larger prompt is answered.

Each is a sighting of one tenant. It is stored for the other replicas once the provider answered that tenant, and read
from them every half minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from operator import ge
from time import monotonic

import structlog

from app.core.limits.budget import Window
from app.core.limits.overflow import LEAST_LIMIT, Overflow
from app.formats.refusals import classify, decoded
from app.http.upstream import Headers
from app.providers.known_windows import SAME_CONTEXT
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.owned import OwnedTasks
from app.runtime.sightings import AnsweredTenants, Sightings
from app.store import Store, StoreUnavailable
from app.store.learned_windows import forget_window, learn_window, read_learned_windows
from app.tokens.rules import LONGEST_MODEL

log = structlog.get_logger("steno.windows")

LEARNT_SECONDS = 24 * 3600.0
SHARED_SECONDS = 30.0
"""Between two looks at what other replicas learnt."""
LEAST_OF_CONFIGURED = 0.5
"""Share of a configured window below which no refusal lowers it."""
MOST_LEARNT = 10_000
"""Sightings that are read from the database."""


class LearntLimits:
    """The limits of one upstream's models, by tenant."""

    def __init__(self, store: Store, route: str, tasks: OwnedTasks, clock: Callable[[], float] = monotonic) -> None:
        """`route` is the base URL, by which replicas know the upstream."""
        self._store = store
        self._route = route
        self._tasks = tasks
        self.answered = AnsweredTenants()
        """Tenants that had an answer from the provider, and so may confirm what others saw."""
        among = self.answered.__contains__
        self._limits: Sightings[str, int] = Sightings(LEARNT_SECONDS, clock, counts=among, agrees=about_the_same)
        """The limit of each model that a refusal named."""
        self._prompts: Sightings[str, int] = Sightings(LEARNT_SECONDS, clock, counts=among, agrees=ge)
        """The largest prompt of each model that was answered."""
        self._measured: BoundedMap[tuple[str, str], int] = BoundedMap(MOST_REMEMBERED)
        """Limits that were measured, by tenant and model: they hold though an operator set more than twice as much."""
        self.revision = 0
        """Rises whenever a limit that requests use may have changed, but for one that ran out."""
        self._stored: set[tuple[str, str]] = set()
        """The limits, by tenant and model, that the database holds."""

    def start(self) -> None:
        """Reads what was learnt, now and again."""
        self._tasks.start(self._share(), "windows")

    def models(self) -> Iterator[str]:
        """Models for which anybody has learnt a limit."""
        return iter(self._limits)

    def lower(self, tenant: str, model: str, base: Window) -> Window:
        """Lower the window `base` to the limit that counts for the tenant."""
        limit = self._limit(tenant, model, base)
        return base if limit is None else lowered(base, limit)

    def learn(
        self,
        tenant: str,
        model: str,
        base: Window,
        overflow: Overflow,
        output: int | None = None,
        *,
        is_measured: bool = False,
    ) -> None:
        """Keeps the limit for a day, or the smaller one that the tenant knows already.

        `base` is the model's window without refusals. `output`: the refused request's output cap. A limit below that is
        more likely about it. `is_measured`: it is not read in an error alone, but the size of an answered prompt with
        its answer, or confirmed by the answer to a smaller prompt.
        """
        limit = overflow.limit
        if not overflow.learn_window or limit is None or len(model) > LONGEST_MODEL:
            return
        answered = self._most_answered(tenant, model)
        if limit < max(output or 0, answered, least := 0 if is_measured else least_of(base)):
            log.info("a limit was not learnt", model=model, limit=limit, output=output, answered=answered, least=least)
            return
        if lowered(base, limit) is base:
            return
        was, before = self.lower(tenant, model, base), self._limits.own(tenant, model)
        learnt = min(limit, before) if before else limit
        self._limits.saw(tenant, model, learnt)
        if is_measured:
            self._measured.keep((tenant, model), learnt)
        self.revision += 1
        self._stored.discard((tenant, model))
        if learnt != before:
            log.warning(
                "learnt a window from an overflow",
                model=model,
                limit=learnt,
                before=was.context,
                now=self.lower(tenant, model, base).context,
                shared=bool(self._limits.confirmed(model)),
            )
        if tenant in self.answered:
            self._keep(tenant, model, learnt)

    def accepts(self, tenant: str) -> None:
        """Note that the provider answered the tenant: what it saw may now confirm what others saw."""
        if self.answered.add(tenant):
            self.revision += 1
            for model, limit in self._limits.of(tenant):
                if (tenant, model) not in self._stored:
                    self._keep(tenant, model, limit)

    def succeeded(self, tenant: str, model: str, prompt_tokens: int) -> None:
        """Drops what the tenant learnt, if a prompt of that many tokens, by the provider's count, proves it wrong."""
        if len(model) > LONGEST_MODEL:
            return
        if prompt_tokens >= LEAST_LIMIT and prompt_tokens > (self._prompts.own(tenant, model) or 0):
            self._prompts.saw(tenant, model, prompt_tokens)
            if model in self._limits:
                self.revision += 1
        if model not in self._limits:
            return
        learnt = self._limits.own(tenant, model)
        if learnt is None or prompt_tokens <= learnt:
            return
        self._drop(tenant, model)
        log.info("dropped a learnt window: a larger prompt was answered", model=model, limit=learnt)
        self._forget(tenant, model, prompt_tokens)

    async def load(self) -> None:
        """Takes over what all replicas know. Raises `StoreUnavailable`."""
        # What is stored meanwhile is not among the rows.
        gone = set(self._stored)
        for row in await self._store.before_start(read_learned_windows, self._route, MOST_LEARNT):
            place = row.tenant, row.model
            gone.discard(place)
            if row.limit < (answered := self._prompts.own(*place) or 0):
                self._drop(*place)
                self._forget(*place, answered)
            elif place in self._stored or self._limits.own(*place) is None:
                self._limits.saw(*place, row.limit, row.seconds_left)
                self.revision += 1
                self._stored.add(place)
                self.answered.add(row.tenant)
        for place in gone & self._stored:
            self._drop(*place)

    def _limit(self, tenant: str, model: str, base: Window) -> int | None:
        """The learnt limit that counts for the tenant."""
        own, confirmed = self._limits.own(tenant, model), self._limits.confirmed(model)
        possible = ([] if own is None else [own]) + ([max(confirmed)] if confirmed else [])
        answered = self._most_answered(tenant, model) if possible else 0
        measured = self._measured.get((tenant, model))
        usable = (limit for limit in possible if limit == measured or limit >= least_of(base))
        return min((limit for limit in usable if limit >= answered), default=None)

    def _most_answered(self, tenant: str, model: str) -> int:
        """The largest prompt that the tenant was answered, or two others were."""
        return max(self._prompts.own(tenant, model) or 0, *self._prompts.confirmed(model), 0)

    async def _share(self) -> None:
        while True:
            if self._store.state == "ok":
                with suppress(StoreUnavailable):
                    await self.load()
            await asyncio.sleep(SHARED_SECONDS)

    def _keep(self, tenant: str, model: str, limit: int) -> None:
        async def keep() -> None:
            await self._store.task_change(learn_window, self._route, model, tenant, limit, LEARNT_SECONDS)
            if self._limits.own(tenant, model) == limit:
                self._stored.add((tenant, model))

        self._write(keep)

    def _drop(self, tenant: str, model: str) -> None:
        self._limits.forget(tenant, model)
        self.revision += 1
        self._stored.discard((tenant, model))

    def _forget(self, tenant: str, model: str, answered: int) -> None:
        self._write(lambda: self._store.task_change(forget_window, self._route, model, tenant, answered))

    def _write(self, change: Callable[[], Awaitable[None]]) -> None:
        async def write() -> None:
            with suppress(StoreUnavailable):  # This process knows it anyway.
                await change()

        self._tasks.start(write(), "windows")


def overflow_in(status: int, headers: Headers, body: bytes, *, first_frame: bool = False) -> Overflow | None:
    """The overflow in a provider's error, if it is about the size of the prompt.

    `first_frame`: `body` is the first data frame of a stream of status 200.
    """
    if any(name == b"content-encoding" and value != b"identity" for name, value in headers):
        return None
    return classify(status, decoded(body), first_frame=first_frame)


def lowered(base: Window, limit: int) -> Window:
    """The window with what a refusal said about it."""
    if limit == base.max_input:
        return base  # The refusal was about the prompt's own bound, which is known.
    if base.source in ("config", "provider") and limit >= (base.max_input or base.context):
        return base
    return Window(
        limit,
        "learnt",
        max_input=base.max_input if base.max_input and base.max_input < limit else None,
        max_output=base.max_output if base.max_output and base.max_output < limit else None,
        note=f"from an overflow; otherwise {base.context:,} ({base.source})",
    )


def least_of(base: Window) -> int:
    """The smallest window that a refusal may lead to."""
    return int(LEAST_OF_CONFIGURED * (base.max_input or base.context)) if base.source == "config" else 0


def about_the_same(other: int, limit: int) -> bool:
    """Whether two limits are one, rounded."""
    return abs(other - limit) <= SAME_CONTEXT * max(other, limit)
