"""Context windows: config > what the provider announces > learnt from an overflow > the bundled registry > a guess.

A learnt limit lowers what is configured or announced and never raises it; over registry and guess it simply wins. It is
kept for a day, for each provider, model and tenant, and stored for the other replicas. It holds for the tenant that was
told it, until it is answered a larger prompt; for everybody once a second tenant was told about the same. A limit is
none that is smaller than a prompt the tenant, or two others, were answered within a day, or less than half of what the
operator set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import ge
from time import monotonic
from urllib.parse import urlsplit

import structlog

from app.core.limits.budget import Window
from app.core.limits.overflow import LEAST_LIMIT, Overflow
from app.core.tokens.rules import LONGEST_MODEL
from app.errors import StenoError, UpstreamTimedOut
from app.headers.credentials import CREDENTIALS
from app.memory.bounded import MOST_REMEMBERED, BoundedMap
from app.memory.sightings import AnsweredTenants, Sightings
from app.providers.discovery import Discovery, ListingRefused, ModelListing
from app.providers.registry import bundled, look_up
from app.providers.upstream import Headers, Upstream
from app.settings import ModelSettings, UpstreamSettings, entry_of
from app.store import Store, StoreUnavailable
from app.wire.refusals import classify, decoded

log = structlog.get_logger("steno.windows")

GUESSED = "neither configured nor announced nor known: a guess"
LEARNT_SECONDS = 24 * 3600.0
SHARED_SECONDS = 30.0
"""Between two looks at what other replicas learnt."""
REFRESH_SECONDS = 3600.0
REFRESH_CHANGING_SECONDS = 60.0
"""Where windows depend on what is loaded: local servers, on the same machine or in the same network."""
RETRY_SECONDS = 300.0
ASK_SECONDS = 5.0
"""For each question to the provider."""
DISCOVERY_SECONDS = 10.0
"""For all of them together."""
WAIT_SECONDS = 1.0
"""What the first requests wait for the first listing, from its start."""
_FINE_TUNE = "ft:"
SAME_CONTEXT = 0.07
"""Numbers this close are one number, rounded."""
LEAST_OF_CONFIGURED = 0.5
"""No refusal lowers what the operator set by more: whoever means it lowers the setting."""
MOST_CACHED = 4_096
MOST_LEARNT = 10_000
"""Sightings that are read from the database."""
MOST_LISTED = 10_000
"""Models in all lists together."""
NOBODY = ""
"""Who sees only what holds for everybody."""
ASKED_WITH = CREDENTIALS | {b"anthropic-version"}
"""What a listing may depend on."""


ListingOutcome = ModelListing | ListingRefused | StenoError
"""How a provider answered when it was asked for its models."""


class Windows:
    """The window of every model at one upstream. `of` answers from memory; all else happens beside the requests."""

    def __init__(
        self,
        models: Sequence[ModelSettings],
        default_window: int,
        at: UpstreamSettings,
        upstream: Upstream,
        store: Store,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._models = models
        self._default_window = default_window
        """In tokens: the window of a model that nobody knows."""
        self._at = at
        self._store = store
        self._clock = clock
        self._route = at.base_url
        self._discovery = Discovery(upstream, urlsplit(self._route).path, ASK_SECONDS)
        self._listing: ModelListing | None = None
        self._asking: asyncio.Task[None] | None = None
        self._told: ListingOutcome | None = None
        self._asked_at = 0.0
        self._due = 0.0
        self._wants_key = False
        self._open_names: frozenset[str] = frozenset()
        """What the provider lists without a caller's key."""
        self._names: BoundedMap[str, tuple[frozenset[str], float]] = BoundedMap(MOST_REMEMBERED)
        """What it listed to each tenant's own key, and until when that is not asked again."""
        self.answered = AnsweredTenants()
        """Who had an answer from the provider, and so may confirm what others saw."""
        among = self.answered.__contains__
        self._learnt: Sightings[str, int] = Sightings(LEARNT_SECONDS, clock, counts=among, agrees=about_the_same)
        """The limit of each model that a refusal told."""
        self._prompts: Sightings[str, int] = Sightings(LEARNT_SECONDS, clock, counts=among, agrees=ge)
        """The largest prompt of each model that was answered."""
        self._stored: set[tuple[str, str]] = set()
        """The limits, by tenant and model, that the database holds."""
        self._cache: BoundedMap[str, Window] = BoundedMap(MOST_CACHED)
        """What is known of each model without learnt limits."""
        self._tasks: set[asyncio.Task[None]] = set()

    # What is known

    def of(self, model: str, tenant: str = NOBODY, guess: int | None = None) -> Window:
        """The model's window as far as it is known now to the tenant.

        `guess` is the window of a model that nobody knows, as the policy of the conversation has it that goes to this
        model. Everybody else takes `compaction.default_window`; so does who writes summaries, because a policy is
        chosen for a conversation and tells nothing of the model that summarises it.
        """
        base = self._without_learnt(model)
        if guess is not None and base.source == "default":
            base = replace(base, context=guess)
        limit = self._limit(base, model, tenant)
        return base if limit is None else lowered(base, limit)

    def names(self) -> list[str]:
        """The models that are known by name: listed, configured without a glob, or with a learnt limit."""
        return self._named(self._learnt, self._listing.models if self._listing else ())

    def names_for(self, tenant: str, used: Iterable[str]) -> list[str]:
        """As far as a tenant may know them who used these: a learnt limit, or a fine-tune, tells of its users, and a
        list that was read with a key of whose key it is."""
        return self._named(used, self._listed_to(tenant))

    def listed(self, model: str, tenant: str = NOBODY) -> bool:
        return model in self._listed_to(tenant)

    def _named(self, used: Iterable[str], listed: Iterable[str]) -> list[str]:
        configured = (entry.match for entry in self._models if not set(entry.match) & set("*?["))
        return sorted({*used, *configured, *(name for name in listed if not name.startswith(_FINE_TUNE))})

    def _listed_to(self, tenant: str) -> frozenset[str]:
        names, _ = self._names.get(tenant) or (frozenset[str](), 0.0)
        return self._open_names | names

    def _limit(self, base: Window, model: str, tenant: str) -> int | None:
        """The learnt limit that the tenant is to go by."""
        own, confirmed = self._learnt.own(tenant, model), self._learnt.confirmed(model)
        told = ([] if own is None else [own]) + ([max(confirmed)] if confirmed else [])
        least = max(self._most_answered(model, tenant), least_of(base)) if told else 0
        return min((limit for limit in told if limit >= least), default=None)

    def _without_learnt(self, model: str) -> Window:
        window = self._cache.get(model)
        if window is None:
            window = self._resolve(model)
            self._cache.keep(model, window)
        return window

    def _resolve(self, model: str) -> Window:
        entry = entry_of(model, self._models)
        if entry is not None and entry.context_window is not None:
            return Window(entry.context_window, "config", entry.max_input_tokens, entry.max_output_tokens)
        sized_as = (entry and entry.base_model) or model
        listed, there = self._listing.of(model) if self._listing else None, known(sized_as)
        guess = Window(self._default_window, "default", note=GUESSED)
        window = completed(listed, there) if listed else there or guess
        if entry is None:
            return window
        return replace(
            window,
            max_input=entry.max_input_tokens or window.max_input,
            max_output=entry.max_output_tokens or window.max_output,
        )

    # Asking the provider

    def start(self) -> None:
        """Reads the registry; in the background asks the provider, without credentials, and reads what was learnt."""
        bundled()
        self._own(self._share())
        if self._at.discover_windows:
            self._ask(())
            self._own(self._refresh())

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settled(self, model: str, tenant: str = NOBODY, headers: Headers = ()) -> None:
        """Waits a moment for the first listing if it matters for the model.

        `headers` are the tenant's: a provider that wants a key is asked with them, and they are not kept.
        """
        entry = entry_of(model, self._models)
        if not self._at.discover_windows or (entry is not None and entry.context_window is not None):
            return
        if self._wants_key and self._clock() >= self._due and (credentials := _credentials(headers)):
            self._ask(credentials, tenant)
        if self._listing is None and self._asking is not None:
            left = self._asked_at + WAIT_SECONDS - self._clock()
            if left > 0:
                await asyncio.wait({self._asking}, timeout=left)

    async def show(self, tenant: str, headers: Headers) -> None:
        """Asks with the tenant's own key for the names it may know, where the provider shows none without."""
        _, until = self._names.get(tenant) or (frozenset[str](), 0.0)
        if self._wants_key and self._clock() >= until and (credentials := _credentials(headers)):
            try:
                await self.told(credentials, tenant)
            except Exception:
                log.exception("the provider's list of models was not understood")

    async def discover(self, headers: Headers = (), tenant: str = NOBODY) -> ModelListing:
        """Asks now; with `headers` of a tenant, only the tenant is shown the names. Raises `ListingRefused` or the
        upstream errors."""
        try:
            async with asyncio.timeout(DISCOVERY_SECONDS):
                listing = await self._discovery.listing(headers)
        except TimeoutError as error:
            raise UpstreamTimedOut("The provider did not tell its models in time.") from error
        if tenant == NOBODY:
            self._open_names, self._listing = frozenset(listing.models), listing
        else:
            self._names.keep(tenant, (frozenset(listing.models), self._clock() + REFRESH_SECONDS))
            # Another key may be shown other models.
            self._listing = listing.beside(self._listing, MOST_LISTED) if self._listing else listing
        self._cache.clear()
        return listing

    async def told(self, headers: Headers = (), tenant: str = NOBODY) -> ListingOutcome:
        """How the provider answers now."""
        try:
            return await self.discover(headers, tenant)
        except (ListingRefused, StenoError) as error:
            return error

    async def first_told(self) -> ListingOutcome | None:
        """How it answered when it was asked at the start; None where it is not asked, or was not understood."""
        if self._asking is not None:
            await asyncio.wait({self._asking})
        return self._told

    async def look_elsewhere(self) -> str | None:
        """A base URL on the provider's host at which there is an API, where there is none at ours."""
        path = await self._discovery.elsewhere()
        return path and urlsplit(self._route)._replace(path=path).geturl()

    def _ask(self, headers: Headers, tenant: str = NOBODY) -> None:
        """One question at a time."""
        if self._asking is None or self._asking.done():
            self._asked_at = self._clock()
            self._due = self._asked_at + RETRY_SECONDS
            self._asking = self._own(self._try(headers, tenant))

    async def _try(self, headers: Headers, tenant: str) -> None:
        """Failure is normal: many providers list nothing, and some want a key."""
        pause = RETRY_SECONDS
        try:
            told = self._told = await self.told(headers, tenant)
        except Exception:
            log.exception("the provider's list of models was not understood")
        else:
            if isinstance(told, ModelListing):
                pause = REFRESH_CHANGING_SECONDS if told.changes else REFRESH_SECONDS
            elif isinstance(told, ListingRefused) and told.wants_key and self._at.api_key_env is None:
                self._wants_key = True
                # The next caller may have a key that is good for it.
                pause = RETRY_SECONDS if headers else 0.0
        self._due = self._clock() + pause

    async def _refresh(self) -> None:
        """Without credentials; a provider that wants a key is asked when a caller brings one."""
        while True:
            await asyncio.sleep(max(1.0, min(self._due - self._clock(), REFRESH_CHANGING_SECONDS)))
            if not self._wants_key and self._clock() >= self._due:
                self._ask(())

    # Learning from refusals

    @staticmethod
    def overflow_in(status: int, headers: Headers, body: bytes, *, first_frame: bool = False) -> Overflow | None:
        """What a provider's error says about the size of the prompt.

        `first_frame`: `body` is the first data frame of a stream of status 200.
        """
        if any(name == b"content-encoding" and value != b"identity" for name, value in headers):
            return None
        return classify(status, decoded(body), first_frame=first_frame)

    def learn(self, tenant: str, model: str, overflow: Overflow, output: int | None = None) -> None:
        """Keeps the limit for a day, or the smaller one that the tenant was told already.

        `output`: tokens that the refused request asked for. A limit below them is more likely theirs.
        """
        limit = overflow.limit
        if not overflow.learn_window or limit is None or len(model) > LONGEST_MODEL:
            return
        base, answered = self._without_learnt(model), self._most_answered(model, tenant)
        if limit < max(output or 0, answered, least := least_of(base)):
            log.info("a limit was not learnt", model=model, limit=limit, output=output, answered=answered, least=least)
            return
        if lowered(base, limit) is base:
            return
        was, before = self.of(model, tenant), self._learnt.own(tenant, model)
        learnt = min(limit, before) if before else limit
        self._learnt.saw(tenant, model, learnt)
        self._stored.discard((tenant, model))
        if learnt != before:
            log.warning(
                "learnt a window from an overflow",
                model=model,
                limit=learnt,
                before=was.context,
                now=self.of(model, tenant).context,
                shared=bool(self._learnt.confirmed(model)),
            )
        if tenant in self.answered:
            self._keep(tenant, model, learnt)

    def accepts(self, tenant: str) -> None:
        """The provider answered the tenant: whatever it saw may confirm what others saw."""
        if self.answered.add(tenant):
            for model, limit in self._learnt.of(tenant):
                if (tenant, model) not in self._stored:
                    self._keep(tenant, model, limit)

    def succeeded(self, tenant: str, model: str, prompt_tokens: int) -> None:
        """Drops what the tenant was told, if a prompt of that many tokens, by the provider's count, proves it wrong."""
        if len(model) > LONGEST_MODEL:
            return
        if prompt_tokens >= max(LEAST_LIMIT, self._prompts.own(tenant, model) or 0):
            self._prompts.saw(tenant, model, prompt_tokens)
        learnt = self._learnt.own(tenant, model)
        if learnt is None or prompt_tokens <= learnt:
            return
        self._drop(tenant, model)
        log.info("dropped a learnt window: a larger prompt was answered", model=model, limit=learnt)
        self._forget(tenant, model, prompt_tokens)

    async def load(self) -> None:
        """Takes over what all replicas know. Raises `StoreUnavailable`."""
        # What is stored meanwhile is not among the rows.
        gone = set(self._stored)
        for row in await self._store.learned_windows(self._route, MOST_LEARNT):
            place = row.tenant, row.model
            gone.discard(place)
            if row.limit < (answered := self._prompts.own(*place) or 0):
                self._drop(*place)
                self._forget(*place, answered)
            elif place in self._stored or self._learnt.own(*place) is None:
                self._learnt.saw(*place, row.limit, row.seconds_left)
                self._stored.add(place)
                self.answered.add(row.tenant)
        for place in gone & self._stored:
            self._drop(*place)

    def _most_answered(self, model: str, tenant: str) -> int:
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
            await self._store.learn_window(self._route, model, tenant, limit, LEARNT_SECONDS)
            if self._learnt.own(tenant, model) == limit:
                self._stored.add((tenant, model))

        self._write(keep)

    def _drop(self, tenant: str, model: str) -> None:
        self._learnt.forget(tenant, model)
        self._stored.discard((tenant, model))

    def _forget(self, tenant: str, model: str, answered: int) -> None:
        self._write(lambda: self._store.forget_window(self._route, model, tenant, answered))

    def _write(self, change: Callable[[], Awaitable[None]]) -> None:
        async def write() -> None:
            with suppress(StoreUnavailable):  # This process knows it all the same.
                await change()

        self._own(write())

    def _own(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="windows")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def about_the_same(other: int, limit: int) -> bool:
    """Whether two limits are one, rounded."""
    return abs(other - limit) <= SAME_CONTEXT * max(other, limit)


def least_of(base: Window) -> int:
    """What a refusal may lower the window to."""
    return int(LEAST_OF_CONFIGURED * (base.max_input or base.context)) if base.source == "config" else 0


def lowered(base: Window, limit: int) -> Window:
    """The window with what a refusal told about it."""
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


def completed(announced: Window, known: Window | None) -> Window:
    """Lists often tell the context alone; where it is the one we know, so are the bounds inside it."""
    if known is None or abs(known.context - announced.context) > SAME_CONTEXT * known.context:
        return announced
    most_input = known.max_input if known.max_input and known.max_input < announced.context else None
    most_output = known.max_output if known.max_output and known.max_output < announced.context else None
    return replace(
        announced, max_input=announced.max_input or most_input, max_output=announced.max_output or most_output
    )


def known(model: str) -> Window | None:
    """The window in the bundled registry."""
    found = look_up(model, bundled())
    if found is None:
        return None
    name, numbers = found
    note = None if name == model else f"taken for {name}"
    return Window(numbers.context, "bundled", numbers.max_input, numbers.max_output, note)


def _credentials(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name in ASKED_WITH]
