"""Context windows: configuration > the provider's /v1/models > learnt from a refusal > bundled > a flagged guess.

1. A learnt limit lowers a configured or announced window and never raises it; it replaces a bundled or guessed one.
2. It is kept for a day, for each provider, model and tenant, and stored for the other replicas. It applies to the
   tenant that learnt it, and to every tenant once a second one has learnt about the same.
3. Only tenants that the provider answered confirm each other, because a key can be made up.
4. A limit is ignored if a larger prompt was answered within a day, to the tenant or to two others; or if it is less
   than half of the configured window, unless the tenant was answered a smaller prompt after the refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import ge
from time import monotonic

import structlog
from msgspec.structs import replace

from app.compaction.budget import MIN_LIMIT, Overflow, Window
from app.formats.refusals import classify, decoded_body
from app.http.upstream import Headers, Upstream
from app.providers.model_listings import ANY_TENANT, ModelListings
from app.providers.registry import bundled, look_up
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.tasks import OwnedTasks
from app.runtime.tenant_facts import TenantFacts
from app.settings import ModelSettings, UpstreamSettings, entry_of
from app.store import Store, StoreUnavailable
from app.store.calibrations import forget_window, learn_window, read_learned_windows
from app.tokens.rules import LONGEST_MODEL

log = structlog.get_logger("steno.windows")

CLOSE = 0.07
"""Largest share by which two roundings of one number differ."""
LEARNT_SECONDS = 24 * 3600.0
SHARED_SECONDS = 30.0
"""Time between two looks at what other replicas learnt."""
LEAST_OF_CONFIGURED = 0.5
"""Share of a configured window below which no refusal lowers it."""
MOST_LEARNT = 10_000
"""Limits that are read from the database."""
MOST_CACHED = 4_096
FINE_TUNE = "ft:"


class Windows:
    """The windows of one upstream's models. `window_of` answers from memory; the rest runs in the background."""

    def __init__(
        self,
        models: Sequence[ModelSettings],
        guess: int,
        at: UpstreamSettings,
        upstream: Upstream,
        store: Store,
        clock: Callable[[], float] = monotonic,
        default_headers: Headers = (),
    ) -> None:
        """`guess` is the window of an unknown model. `default_headers` are sent with each question for the models."""
        self._models = models
        self._guess = guess
        self._store = store
        self._upstream = at.base_url
        self._tasks = OwnedTasks()
        self.listings = ModelListings(at, upstream, self._tasks, clock, default_headers)
        self.answered_tenants: BoundedMap[str, None] = BoundedMap(MOST_REMEMBERED)
        """Tenants that the provider answered. Only they confirm limits of others, as made-up keys are refused."""
        counts = self.answered_tenants.__contains__
        self._limits: TenantFacts[str, int] = TenantFacts(LEARNT_SECONDS, clock, counts=counts, agrees=are_close)
        """The learnt limit of each model."""
        self._prompts: TenantFacts[str, int] = TenantFacts(LEARNT_SECONDS, clock, counts=counts, agrees=ge)
        """The largest answered prompt of each model."""
        self._measured: BoundedMap[tuple[str, str], int] = BoundedMap(MOST_REMEMBERED)
        """Limits that were measured, by tenant and model: they hold below half of a configured window, too."""
        self._stored: set[tuple[str, str]] = set()
        """The limits, by tenant and model, that the database holds."""

    def start(self) -> None:
        """Read the registry; in the background ask the provider, without credentials, and read what was learnt."""
        bundled()
        self._tasks.start(self._share(), "windows")
        self.listings.start()

    async def stop(self) -> None:
        await self._tasks.drain(0.0)

    def window_of(
        self, model: str, tenant: str = ANY_TENANT, guess: int | None = None, asked: int | None = None
    ) -> Window:
        """The model's window as far as the tenant may know it.

        `guess` is the window of an unknown model by the conversation's policy, which says nothing about a model that
        summarises. `asked` is the window that the request's headers ask for; limits learnt with it apply only to
        requests with it.
        """
        window, name = self._unlearnt(model, asked, guess), _limit_key(model, asked)
        own, confirmed = self._limits.own(tenant, name), self._limits.confirmed(name)
        limits = ([] if own is None else [own]) + ([max(confirmed)] if confirmed else [])
        if not limits:
            return window
        answered, measured = self._most_answered(tenant, name), self._measured.get((tenant, name))
        usable = (limit for limit in limits if limit == measured or limit >= least_of(window))
        limit = min((limit for limit in usable if limit >= answered), default=None)
        return window if limit is None else lower(window, limit)

    async def wait_for_listing(self, model: str, tenant: str = ANY_TENANT, headers: Headers = ()) -> None:
        """Wait a moment for the first listing if it matters for the model. `headers` are the tenant's."""
        if self.listings.is_current:
            return
        entry = entry_of(model, self._models)
        if entry is None or entry.context_window is None:
            await self.listings.wait_for_first(tenant, headers)

    def names(self) -> list[str]:
        """The models that are known by name: listed, configured without a glob, or with a learnt limit."""
        listing = self.listings.listing
        return self._names(self._limits, listing.models if listing else ())

    def names_for(self, tenant: str, used: Iterable[str]) -> list[str]:
        """Names visible to a tenant that used these models; other limits and fine-tunes reveal their users."""
        return self._names(used, self.listings.names_for(tenant))

    def _names(self, used: Iterable[str], listed: Iterable[str]) -> list[str]:
        configured = (entry.match for entry in self._models if not set(entry.match) & set("*?["))
        return sorted({*used, *configured, *(name for name in listed if not name.startswith(FINE_TUNE))})

    def _unlearnt(self, model: str, asked: int | None, guess: int | None = None) -> Window:
        """The window without learnt limits. A configured one applies whatever a request asks for."""
        entry, listing = entry_of(model, self._models), self.listings.listing
        if entry is not None and entry.context_window is not None:
            return Window(entry.context_window, "config", entry.max_input_tokens)
        known, listed = bundled_window((entry and entry.base_model) or model), listing.of(model) if listing else None
        guessed = Window(guess or self._guess, "default", note="neither configured nor announced nor known: a guess")
        window = complete(listed, known) if listed else known or guessed
        if entry is not None and entry.max_input_tokens:
            window = replace(window, max_input=entry.max_input_tokens)
        if asked is None or asked <= window.context:
            return window
        return replace(window, context=asked, max_input=None, note="asked for by the request's headers")

    # Learnt limits

    def learn(
        self,
        tenant: str,
        model: str,
        overflow: Overflow,
        output: int | None = None,
        asked: int | None = None,
        *,
        is_measured: bool = False,
    ) -> None:
        """Keep the limit for a day, or the smaller one that the tenant has learnt before.

        `output`: the refused request's output cap; a smaller limit more likely means that. `is_measured`: the limit is
        the size of an answered prompt with its answer, or was confirmed by the answer to a smaller prompt.
        """
        limit, name, window = overflow.limit, _limit_key(model, asked), self._unlearnt(model, asked)
        if not overflow.learn_window or limit is None or len(name) > LONGEST_MODEL:
            return
        answered, least = self._most_answered(tenant, name), 0 if is_measured else least_of(window)
        if limit < max(output or 0, answered, least):
            log.info("a limit was not learnt", model=name, limit=limit, output=output, answered=answered, least=least)
            return
        if lower(window, limit) is window:
            return
        known, before = self._limits.own(tenant, name), self.window_of(model, tenant, asked=asked)
        learnt = min(limit, known) if known else limit
        self._limits.learn(tenant, name, learnt)
        if is_measured:
            self._measured.keep((tenant, name), learnt)
        self._stored.discard((tenant, name))
        if learnt != known:
            log.warning(
                "learnt a window from an overflow",
                model=name,
                limit=learnt,
                before=before.context,
                now=self.window_of(model, tenant, asked=asked).context,
                shared=bool(self._limits.confirmed(name)),
            )
        if tenant in self.answered_tenants:
            self._tasks.start(self._store_limit(tenant, name, learnt), "windows")

    def add_answered(self, tenant: str) -> None:
        """Note that the provider answered the tenant: its limits may now confirm those of others."""
        is_new = tenant not in self.answered_tenants
        self.answered_tenants.keep(tenant, None)
        if is_new:
            for name, limit in self._limits.of(tenant):
                if (tenant, name) not in self._stored:
                    self._tasks.start(self._store_limit(tenant, name, limit), "windows")

    def add_prompt(self, tenant: str, model: str, tokens: int, asked: int | None = None) -> None:
        """Note an answered prompt, in the provider's tokens. A smaller limit of the tenant's is forgotten."""
        name = _limit_key(model, asked)
        if len(name) > LONGEST_MODEL:
            return
        if tokens >= MIN_LIMIT and tokens > (self._prompts.own(tenant, name) or 0):
            self._prompts.learn(tenant, name, tokens)
        learnt = self._limits.own(tenant, name)
        if learnt is not None and tokens > learnt:
            self._drop(tenant, name)
            log.info("dropped a learnt window: a larger prompt was answered", model=name, limit=learnt)
            self._tasks.start(self._erase_limit(tenant, name, tokens), "windows")

    async def load(self) -> None:
        """Load the limits of all replicas. Raises `StoreUnavailable`."""
        # Limits that are stored meanwhile are not among the rows.
        gone = set(self._stored)
        for row in await self._store.before_start(read_learned_windows, self._upstream, MOST_LEARNT):
            key = row.tenant, row.model
            gone.discard(key)
            if row.limit < (answered := self._prompts.own(*key) or 0):
                self._drop(*key)
                self._tasks.start(self._erase_limit(*key, answered), "windows")
            elif key in self._stored or self._limits.own(*key) is None:
                self._limits.learn(*key, row.limit, row.seconds_left)
                self._stored.add(key)
                self.answered_tenants.keep(row.tenant, None)
        for key in gone & self._stored:
            self._drop(*key)

    def _most_answered(self, tenant: str, name: str) -> int:
        """The largest prompt that was answered to the tenant, or to two others."""
        return max(self._prompts.own(tenant, name) or 0, *self._prompts.confirmed(name), 0)

    async def _share(self) -> None:
        while True:
            if self._store.state == "ok":
                with suppress(StoreUnavailable):
                    await self.load()
            await asyncio.sleep(SHARED_SECONDS)

    async def _store_limit(self, tenant: str, name: str, limit: int) -> None:
        with suppress(StoreUnavailable):  # This process knows it anyway.
            await self._store.task_change(learn_window, self._upstream, name, tenant, limit, LEARNT_SECONDS)
            if self._limits.own(tenant, name) == limit:
                self._stored.add((tenant, name))

    async def _erase_limit(self, tenant: str, name: str, answered: int) -> None:
        with suppress(StoreUnavailable):
            await self._store.task_change(forget_window, self._upstream, name, tenant, answered)

    def _drop(self, tenant: str, name: str) -> None:
        self._limits.forget(tenant, name)
        self._stored.discard((tenant, name))


@lru_cache(MOST_CACHED)
def bundled_window(model: str) -> Window | None:
    found = look_up(model, bundled())
    if found is None:
        return None
    name, numbers = found
    note = None if name == model else f"taken for {name}"
    return Window(numbers.context, "bundled", numbers.max_input, numbers.max_output, note)


def complete(announced: Window, known: Window | None) -> Window:
    """Add the known bounds to an announced window of the same size: lists often name the context alone."""
    if known is None or abs(known.context - announced.context) > CLOSE * known.context:
        return announced
    most_input = known.max_input if known.max_input and known.max_input < announced.context else None
    most_output = known.max_output if known.max_output and known.max_output < announced.context else None
    return replace(
        announced, max_input=announced.max_input or most_input, max_output=announced.max_output or most_output
    )


def lower(window: Window, limit: int) -> Window:
    """Lower the window to the limit in a refusal."""
    if limit == window.max_input:
        return window  # The refusal was about the prompt's own bound, which is known.
    if window.source in ("config", "provider") and limit >= (window.max_input or window.context):
        return window
    return Window(
        limit,
        "learnt",
        max_input=window.max_input if window.max_input and window.max_input < limit else None,
        max_output=window.max_output if window.max_output and window.max_output < limit else None,
        note=f"from an overflow; otherwise {window.context:,} ({window.source})",
    )


def least_of(window: Window) -> int:
    """The smallest limit that a refusal may teach."""
    return int(LEAST_OF_CONFIGURED * (window.max_input or window.context)) if window.source == "config" else 0


def are_close(other: int, limit: int) -> bool:
    return abs(other - limit) <= CLOSE * max(other, limit)


def overflow_in(status: int, headers: Headers, body: bytes, *, first_frame: bool = False) -> Overflow | None:
    """The overflow in a provider's error, if it is about the size of the prompt.

    `first_frame`: `body` is the first data frame of a stream of status 200.
    """
    if any(name == b"content-encoding" and value != b"identity" for name, value in headers):
        return None
    return classify(status, decoded_body(body), first_frame=first_frame)


def _limit_key(model: str, asked: int | None) -> str:
    """Key of a learnt limit: the model's name, and the window that a request asked for."""
    return model if asked is None else f"{model}[{asked}]"
