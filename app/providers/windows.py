"""Context windows of models: from the settings, or else from /v1/models, a refusal, the bundled table, or a guess.

1. A limit that a refusal names lowers a configured or announced window, and replaces a bundled or guessed window.
2. Steno keeps a learnt limit for a day, for each provider, model and tenant, and stores it for the other replicas. The
   limit applies to the refused tenant. After a second tenant gets a similar limit (`CLOSE`), all tenants get the limit.
3. Only tenants that the provider has answered can confirm a limit: a provider answers no invented keys.
4. Steno ignores a limit if, within a day, the provider answered a larger prompt of the tenant, or larger prompts of two
   tenants. It ignores a limit below half of the configured window, unless the limit was measured (`Windows.learn`).
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

from app.compaction.budget import Window
from app.compaction.overflow import MIN_LIMIT, Overflow
from app.formats.refusals import decoded_body, read_overflow
from app.http.upstream import Headers, Upstream
from app.providers.bundled_models import bundled, look_up
from app.providers.model_listings import ModelListings
from app.runtime.caches import MOST_REMEMBERED, BoundedMap, TenantFacts
from app.runtime.tasks import OwnedTasks
from app.settings import ModelSettings, UpstreamSettings, entry_of
from app.store import Store, StoreUnavailable
from app.store.calibrations import forget_window, learn_window, read_learned_windows
from app.tokens.counting_rules import LONGEST_MODEL

log = structlog.get_logger("steno.windows")

GUESSED_WINDOW = 128_000
"""Assumed window of a model that no source knows."""
_GUESS = Window(GUESSED_WINDOW, "default", note="neither configured nor announced nor known: a guess")
ANY_TENANT = ""
"""Value of `tenant` in calls that belong to no tenant. Such a call gets only the data that all tenants may see."""
CLOSE = 0.07
"""Two limits agree if they differ by at most this share of the larger limit. Providers round differently."""
LEARNT_SECONDS = 24 * 3600.0
SHARED_SECONDS = 30.0
"""Time between two reads of other replicas' limits."""
LEAST_OF_CONFIGURED = 0.5
"""Smallest limit that a refusal may set, as a share of the configured window."""
MOST_LEARNT = 10_000
"""Maximum number of limits that are read from the database."""
MOST_CACHED = 4_096
FINE_TUNE = "ft:"


class Windows:
    """The windows of one upstream's models. `window_of` reads only memory, which is filled in the background."""

    def __init__(
        self,
        models: Sequence[ModelSettings],
        at: UpstreamSettings,
        upstream: Upstream,
        store: Store,
        clock: Callable[[], float] = monotonic,
        default_headers: Headers = (),
    ) -> None:
        """`default_headers` are sent with requests for the list of models."""
        self._models = models
        self._store = store
        self._upstream = at.base_url
        self._tasks = OwnedTasks()
        self.listings = ModelListings(at, upstream, self._tasks, clock, default_headers)
        self.answered_tenants: BoundedMap[str, None] = BoundedMap(MOST_REMEMBERED)
        """Tenants that the provider answered. Only they confirm limits, because the provider refuses invented keys."""
        counts = self.answered_tenants.__contains__
        self.limits: TenantFacts[str, int] = TenantFacts(LEARNT_SECONDS, clock, counts=counts, agrees=are_close)
        """Learnt limits by model."""
        self._prompts: TenantFacts[str, int] = TenantFacts(LEARNT_SECONDS, clock, counts=counts, agrees=ge)
        """Largest answered prompts by model."""
        self._measured: BoundedMap[tuple[str, str], int] = BoundedMap(MOST_REMEMBERED)
        """Measured limits by tenant and model. They apply even below half of a configured window."""
        self._stored: set[tuple[str, str]] = set()
        """Tenants and models whose limits are in the database."""

    def start(self) -> None:
        """Load the bundled models. In the background, ask the provider for its models, and load the stored limits."""
        bundled()
        self._tasks.start(self._share(), "windows")
        self.listings.start()

    async def stop(self) -> None:
        await self._tasks.drain(0.0)

    def window_of(self, model: str, tenant: str = ANY_TENANT, asked: int | None = None) -> Window:
        """Return the model's window, from facts that the tenant may know.

        `asked` is the window that the request's headers ask for. A limit learnt with `asked` applies only to requests
        with the same value.
        """
        window, name = self._unlearnt(model, asked), _limit_key(model, asked)
        own, confirmed = self.limits.own(tenant, name), self.limits.confirmed(name)
        if own is None and not confirmed:
            return window
        limits = ([] if own is None else [own]) + ([max(confirmed)] if confirmed else [])
        answered, measured = self._most_answered(tenant, name), self._measured.get((tenant, name))
        usable = (limit for limit in limits if limit == measured or limit >= least_of(window))
        limit = min((limit for limit in usable if limit >= answered), default=None)
        return window if limit is None else lower(window, limit)

    async def wait_for_listing(self, model: str, headers: Headers = ()) -> None:
        """Wait at most a second for the first listing, unless the model's window is configured."""
        if self.listings.is_current:
            return
        entry = entry_of(model, self._models)
        if entry is None or entry.context_window is None:
            await self.listings.wait_for_first(headers)

    def names(self, used: Iterable[str] = ()) -> list[str]:
        """Return the names in `used`, in the settings and in the provider's list. Omit the list's fine-tuned models,
        because their names may reveal other tenants."""
        configured = (entry.match for entry in self._models if not set(entry.match) & set("*?["))
        listed = (name for name in self.listings.open_names if not name.startswith(FINE_TUNE))
        return sorted({*used, *configured, *listed})

    def _unlearnt(self, model: str, asked: int | None) -> Window:
        """Return the window without learnt limits. A configured window overrides `asked`."""
        entry, listing = entry_of(model, self._models), self.listings.listing
        if entry is not None and entry.context_window is not None:
            return Window(entry.context_window, "config", entry.max_input_tokens)
        known, listed = bundled_window((entry and entry.base_model) or model), listing.of(model) if listing else None
        window = complete(listed, known) if listed else known or _GUESS
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
        """Remember the limit of a refusal for a day. If the tenant already has a smaller limit, remember that one.

        `output`: output cap of the refused request. Steno ignores a limit below this cap: it is probably for answers.
        `is_measured`: prompt and answer filled the window, or the provider answered a smaller prompt after the refusal.
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
        known, before = self.limits.own(tenant, name), self.window_of(model, tenant, asked=asked)
        learnt = min(limit, known) if known else limit
        self.limits.learn(tenant, name, learnt)
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
                shared=bool(self.limits.confirmed(name)),
            )
        if tenant in self.answered_tenants:
            self._tasks.start(self._store_limit(tenant, name, learnt), "windows")

    def add_answered(self, tenant: str) -> None:
        """Record that the provider answered the tenant. The tenant's limits may now confirm other tenants' limits."""
        is_new = tenant not in self.answered_tenants
        self.answered_tenants.keep(tenant, None)
        if is_new:
            for name, limit in self.limits.of(tenant):
                if (tenant, name) not in self._stored:
                    self._tasks.start(self._store_limit(tenant, name, limit), "windows")

    def add_prompt(self, tenant: str, model: str, tokens: int, asked: int | None = None) -> None:
        """Record the size of an answered prompt, in the provider's tokens. Forget a smaller limit of the tenant."""
        name = _limit_key(model, asked)
        if len(name) > LONGEST_MODEL:
            return
        if tokens >= MIN_LIMIT and tokens > (self._prompts.own(tenant, name) or 0):
            self._prompts.learn(tenant, name, tokens)
        learnt = self.limits.own(tenant, name)
        if learnt is not None and tokens > learnt:
            self._drop(tenant, name)
            log.info("dropped a learnt window: a larger prompt was answered", model=name, limit=learnt)
            self._tasks.start(self._erase_limit(tenant, name, tokens), "windows")

    async def load(self) -> None:
        """Load the limits of all replicas. Raises `StoreUnavailable`."""
        # The rows may lack limits that are stored during the read: `gone` does not contain these.
        gone = set(self._stored)
        for row in await self._store.task(read_learned_windows, self._upstream, MOST_LEARNT):
            key = row.tenant, row.model
            gone.discard(key)
            if row.limit_tokens < (answered := self._prompts.own(*key) or 0):
                self._drop(*key)
                self._tasks.start(self._erase_limit(*key, answered), "windows")
            elif key in self._stored or self.limits.own(*key) is None:
                self.limits.learn(*key, row.limit_tokens, row.left_ms / 1000)
                self._stored.add(key)
                self.answered_tenants.keep(row.tenant, None)
        for key in gone & self._stored:
            self._drop(*key)

    def _most_answered(self, tenant: str, name: str) -> int:
        """Return the tokens of the largest answered prompt: the tenant's own, or one that two tenants confirm."""
        return max(self._prompts.own(tenant, name) or 0, *self._prompts.confirmed(name), 0)

    async def _share(self) -> None:
        while True:
            if self._store.reason is None:
                with suppress(StoreUnavailable):
                    await self.load()
            await asyncio.sleep(SHARED_SECONDS)

    async def _store_limit(self, tenant: str, name: str, limit: int) -> None:
        with suppress(StoreUnavailable):  # This process has the limit in memory.
            await self._store.task_change(learn_window, self._upstream, name, tenant, limit, LEARNT_SECONDS)
            if self.limits.own(tenant, name) == limit:
                self._stored.add((tenant, name))

    async def _erase_limit(self, tenant: str, name: str, answered: int) -> None:
        with suppress(StoreUnavailable):
            await self._store.task_change(forget_window, self._upstream, name, tenant, answered)

    def _drop(self, tenant: str, name: str) -> None:
        self.limits.forget(tenant, name)
        self._stored.discard((tenant, name))


@lru_cache(MOST_CACHED)
def bundled_window(model: str) -> Window | None:
    found = look_up(model, bundled())
    if found is None:
        return None
    name, (context, max_input, max_output) = found
    return Window(context, "bundled", max_input, max_output, None if name == model else f"taken for {name}")


def complete(announced: Window, known: Window | None) -> Window:
    """Return the announced window. Add missing limits from the `known` window if both have about the same size."""
    if known is None or abs(known.context - announced.context) > CLOSE * known.context:
        return announced
    most_input = known.max_input if known.max_input and known.max_input < announced.context else None
    most_output = known.max_output if known.max_output and known.max_output < announced.context else None
    return replace(
        announced, max_input=announced.max_input or most_input, max_output=announced.max_output or most_output
    )


def lower(window: Window, limit: int) -> Window:
    """Return the window lowered to a learnt limit."""
    if limit == window.max_input:
        return window  # Steno already knows this limit.
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
    """Return the smallest limit that a refusal may set."""
    return int(LEAST_OF_CONFIGURED * (window.max_input or window.context)) if window.source == "config" else 0


def are_close(other: int, limit: int) -> bool:
    return abs(other - limit) <= CLOSE * max(other, limit)


def overflow_in(status: int, headers: Headers, body: bytes, *, first_frame: bool = False) -> Overflow | None:
    """Return the overflow that a provider's error reports; None if the error is not about the prompt's size.

    `first_frame`: `body` is the first data frame of a stream with status 200.
    """
    if any(name == b"content-encoding" and value != b"identity" for name, value in headers):
        return None
    return read_overflow(status, decoded_body(body), first_frame=first_frame)


def _limit_key(model: str, asked: int | None) -> str:
    """Return the key of a learnt limit: the model, with the window that the request asked for."""
    return model if asked is None else f"{model}[{asked}]"
