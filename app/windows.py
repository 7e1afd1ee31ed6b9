"""Context windows: config > what the provider announces > learnt from an overflow > the bundled registry > a guess.

A learnt limit lowers what is configured or announced and never raises it; over registry and guess it simply wins. It is
kept for a day, for each provider and model, shared by the replicas through the database, and dropped as soon as a
larger prompt is answered. A limit smaller than a prompt that was answered within a day is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from urllib.parse import urlsplit

import msgspec
import structlog

from app.core.budget import Window
from app.core.overflow import LEAST_LIMIT, Overflow, classify
from app.credentials import CREDENTIALS
from app.discovery import Discovery, Listing, ListingRefused
from app.errors import StenoError, UpstreamTimedOut
from app.registry import LONGEST_NAME, bundled, look_up
from app.settings import Settings, UpstreamSettings
from app.store import Store, StoreUnavailable
from app.upstream import Headers, Upstream

log = structlog.get_logger("steno.windows")

DEFAULT = Window(128_000, "default", note="neither configured nor announced nor known: a guess")

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
MOST_CACHED = 4_096
MOST_LEARNT = 1_000
MOST_ANSWERED = 10_000
ASKED_WITH = CREDENTIALS | {b"anthropic-version"}
"""What a listing may depend on."""


Told = Listing | ListingRefused | StenoError
"""How a provider answered when it was asked for its models."""


@dataclass(slots=True)
class _Learnt:
    """What is known of a window's size for a while, in tokens."""

    limit: int
    until: float
    """By the monotonic clock."""
    stored: bool = False


class Windows:
    """The window of every model at one upstream. `of` answers from memory; all else happens beside the requests."""

    def __init__(
        self,
        settings: Settings,
        at: UpstreamSettings,
        upstream: Upstream,
        store: Store,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._settings = settings
        self._at = at
        self._store = store
        self._clock = clock
        self._route = at.base_url
        self._discovery = Discovery(upstream, urlsplit(self._route).path, ASK_SECONDS)
        self._listing: Listing | None = None
        self._asking: asyncio.Task[None] | None = None
        self._told: Told | None = None
        self._asked_at = 0.0
        self._due = 0.0
        self._wants_key = False
        self._learnt: dict[str, _Learnt] = {}
        self._answered: dict[str, _Learnt] = {}
        """The largest prompt of each model that was answered lately."""
        self._cache: dict[str, Window] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # What is known

    def of(self, model: str) -> Window:
        """The model's window as far as it is known now."""
        window = self._cache.get(model)
        if window is None:
            if len(self._cache) >= MOST_CACHED:
                self._cache.clear()
            window = self._cache[model] = self._resolve(model)
        return window

    def names(self) -> list[str]:
        """The models that are known by name: listed, configured without a glob, or with a learnt limit."""
        return self.names_for(self._learnt)

    def names_for(self, used: Iterable[str]) -> list[str]:
        """As far as somebody may know them who used these: a learnt limit, or a fine-tune, tells of its users."""
        listed = self._listing.models if self._listing else ()
        configured = (entry.match for entry in self._settings.models if not set(entry.match) & set("*?["))
        return sorted({*used, *configured, *(name for name in listed if not name.startswith(_FINE_TUNE))})

    def listed(self, model: str) -> bool:
        return self._listing is not None and model in self._listing.models

    def _resolve(self, model: str) -> Window:
        base = self._without_learnt(model)
        learnt = self._learnt.get(model)
        if learnt is None:
            return base
        return lowered(base, learnt.limit)

    def _without_learnt(self, model: str) -> Window:
        entry = self._settings.of_model(model)
        if entry is not None and entry.context_window is not None:
            return Window(entry.context_window, "config", entry.max_input_tokens, entry.max_output_tokens)
        listed, there = self._listing.of(model) if self._listing else None, known(self._settings.base_model(model))
        guess = replace(DEFAULT, context=self._settings.compaction.default_window)
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

    async def settled(self, model: str, headers: Headers = ()) -> None:
        """Waits a moment for the first listing if it matters for the model.

        `headers` are the caller's: a provider that wants a key is asked with them, and they are not kept.
        """
        entry = self._settings.of_model(model)
        if not self._at.discover_windows or (entry is not None and entry.context_window is not None):
            return
        if self._wants_key and self._clock() >= self._due:
            credentials = [(name, value) for name, value in headers if name in ASKED_WITH]
            if credentials:
                self._ask(credentials)
        if self._listing is None and self._asking is not None:
            left = self._asked_at + WAIT_SECONDS - self._clock()
            if left > 0:
                await asyncio.wait({self._asking}, timeout=left)

    async def discover(self, headers: Headers = ()) -> Listing:
        """Asks now. Raises `ListingRefused` or the upstream errors."""
        try:
            async with asyncio.timeout(DISCOVERY_SECONDS):
                listing = await self._discovery.listing(headers)
        except TimeoutError as error:
            raise UpstreamTimedOut("The provider did not tell its models in time.") from error
        self._listing = listing
        self._cache.clear()
        return listing

    async def told(self, headers: Headers = ()) -> Told:
        """How the provider answers now."""
        try:
            return await self.discover(headers)
        except (ListingRefused, StenoError) as error:
            return error

    async def first_told(self) -> Told | None:
        """How it answered when it was asked at the start; None where it is not asked, or was not understood."""
        if self._asking is not None:
            await asyncio.wait({self._asking})
        return self._told

    async def look_elsewhere(self) -> str | None:
        """A base URL on the provider's host at which there is an API, where there is none at ours."""
        path = await self._discovery.elsewhere()
        return path and urlsplit(self._route)._replace(path=path).geturl()

    def _ask(self, headers: Headers) -> None:
        """One question at a time."""
        if self._asking is None or self._asking.done():
            self._asked_at = self._clock()
            self._due = self._asked_at + RETRY_SECONDS
            self._asking = self._own(self._try(headers))

    async def _try(self, headers: Headers) -> None:
        """Failure is normal: many providers list nothing, and some want a key."""
        pause = RETRY_SECONDS
        try:
            told = self._told = await self.told(headers)
        except Exception:
            log.exception("the provider's list of models was not understood")
        else:
            if isinstance(told, Listing):
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
        return classify(status, _parsed(body), first_frame=first_frame)

    def learn(self, model: str, overflow: Overflow, output: int | None = None) -> None:
        """Keeps the limit for a day, or the smaller one that is known already.

        `output`: tokens that the refused request asked for. A limit below them is more likely theirs.
        """
        limit = overflow.limit
        if not overflow.learn_window or limit is None or len(model) > LONGEST_NAME:
            return
        if limit < max(output or 0, answered := self._most_answered(model)):
            log.info("a limit was not learnt", model=model, limit=limit, output=output, answered=answered)
            return
        if lowered(base := self._without_learnt(model), limit) is base:
            return
        was, before = self.of(model), self._learnt.pop(model, None)
        learnt = min(limit, before.limit) if before else limit
        self._learnt[model] = _Learnt(learnt, self._clock() + LEARNT_SECONDS)
        self._cache.pop(model, None)
        while len(self._learnt) > MOST_LEARNT:
            oldest = next(iter(self._learnt))
            del self._learnt[oldest]
            self._cache.pop(oldest, None)
        if before is None or learnt != before.limit:
            now = self.of(model)
            log.warning(
                "learnt a window from an overflow", model=model, limit=learnt, before=was.context, now=now.context
            )
        self._write(self._keep(model, learnt))

    def succeeded(self, model: str, prompt_tokens: int) -> None:
        """Drops a learnt limit that a prompt of that many tokens, by the provider's count, proves wrong."""
        if prompt_tokens >= max(LEAST_LIMIT, self._most_answered(model)) and len(model) <= LONGEST_NAME:
            self._answered.pop(model, None)
            self._answered[model] = _Learnt(prompt_tokens, self._clock() + LEARNT_SECONDS)
            if len(self._answered) > MOST_ANSWERED:
                del self._answered[next(iter(self._answered))]
        learnt = self._learnt.get(model)
        if learnt is None or prompt_tokens <= learnt.limit:
            return
        del self._learnt[model]
        self._cache.pop(model, None)
        log.info("dropped a learnt window: a larger prompt was answered", model=model, limit=learnt.limit)
        self._forget(model, prompt_tokens)

    async def load(self) -> None:
        """Takes over what all replicas know. Raises `StoreUnavailable`."""
        began = self._clock()
        rows = await self._store.learned_windows(self._route, MOST_LEARNT)
        shared: dict[str, _Learnt] = {}
        for row in rows:
            if row.limit < self._most_answered(row.model):
                self._forget(row.model, self._most_answered(row.model))
            else:
                shared[row.model] = _Learnt(row.limit, began + row.seconds_left, stored=True)
        # What was learnt meanwhile, or could not be stored yet, is not among the rows.
        new = {
            m: learnt
            for m, learnt in self._learnt.items()
            if not learnt.stored or learnt.until >= began + LEARNT_SECONDS
        }
        self._learnt = shared | new
        self.expire()

    def expire(self) -> None:
        """Forgets limits whose time is over."""
        now = self._clock()
        self._learnt = {model: learnt for model, learnt in self._learnt.items() if learnt.until > now}
        self._cache.clear()

    def _most_answered(self, model: str) -> int:
        answered = self._answered.get(model)
        return answered.limit if answered is not None and answered.until > self._clock() else 0

    async def _share(self) -> None:
        while True:
            if self._store.state == "ok":
                with suppress(StoreUnavailable):
                    await self.load()
            self.expire()
            await asyncio.sleep(SHARED_SECONDS)

    def _keep(self, model: str, limit: int) -> Callable[[], Awaitable[None]]:
        async def keep() -> None:
            await self._store.learn_window(self._route, model, limit, LEARNT_SECONDS)
            if (learnt := self._learnt.get(model)) is not None and learnt.limit == limit:
                learnt.stored = True

        return keep

    def _forget(self, model: str, answered: int) -> None:
        self._write(lambda: self._store.forget_window(self._route, model, answered))

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


def _parsed(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
        return body.decode("utf-8", "replace")
