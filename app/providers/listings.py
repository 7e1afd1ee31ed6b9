"""Listings: when a provider is asked for its models, with whose key, and who may see their names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from urllib.parse import urlsplit

import structlog

from app.errors import StenoError, UpstreamTimedOut
from app.http.credentials import CREDENTIALS
from app.http.upstream import Headers, Upstream
from app.providers.discovery import Discovery, ListingRefused, ModelListing
from app.providers.known_windows import KnownWindows
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.owned import OwnedTasks
from app.settings import UpstreamSettings

log = structlog.get_logger("steno.windows")

REFRESH_SECONDS = 3600.0
REFRESH_CHANGING_SECONDS = 60.0
"""Time between two listings where windows depend on what is loaded: local servers, on the same machine or in the same
network."""
RETRY_SECONDS = 300.0
ASK_SECONDS = 5.0
"""Longest wait for each question to the provider."""
DISCOVERY_SECONDS = 10.0
"""Longest wait for all questions together."""
WAIT_SECONDS = 1.0
"""Longest wait of the first requests for the first listing, from its start."""
MOST_LISTED = 10_000
"""Models in all lists together."""
NOBODY = ""
"""A tenant that sees only what holds for everybody."""
ASKED_WITH = CREDENTIALS | {b"anthropic-version"}
"""Headers on which a listing may depend."""

ListingOutcome = ModelListing | ListingRefused | StenoError
"""Answer of a provider that was asked for its models."""


class Listings:
    """Asks one provider, one question at a time, and passes on what it announces."""

    def __init__(
        self,
        known: KnownWindows,
        at: UpstreamSettings,
        upstream: Upstream,
        tasks: OwnedTasks,
        clock: Callable[[], float] = monotonic,
        asked_with: Headers = (),
    ) -> None:
        """`known` is given every listing."""
        self._known = known
        self._at = at
        self._tasks = tasks
        self._clock = clock
        self._discovery = Discovery(upstream, urlsplit(at.base_url).path, ASK_SECONDS, asked_with)
        self._asking: asyncio.Task[None] | None = None
        self.latest_told: ListingOutcome | None = None
        """The provider's latest answer; None where it was not asked, or not understood."""
        self._asked_at = 0.0
        self._due = 0.0
        self._wants_key = False
        self._open_names: frozenset[str] = frozenset()
        """Names that the provider lists without a caller's key."""
        self._names: BoundedMap[str, tuple[frozenset[str], float]] = BoundedMap(MOST_REMEMBERED)
        """Names listed to each tenant's own key, and the time until which the provider is not asked again."""

    def start(self) -> None:
        """Asks without credentials, now and whenever it is due."""
        if self._at.discover_windows:
            self._ask(())
            self._tasks.start(self._refresh(), "windows")

    def names_for(self, tenant: str) -> frozenset[str]:
        """Names listed to everybody, or to the tenant's own key."""
        names, _ = self._names.get(tenant) or (frozenset[str](), 0.0)
        return self._open_names | names

    async def settled(self, model: str, tenant: str = NOBODY, headers: Headers = ()) -> None:
        """Waits a moment for the first listing if it matters for the model.

        `headers` are the tenant's: a provider that wants a key is asked with them, and they are not kept.
        """
        is_told = self._known.listing is not None and not self._wants_key
        if is_told or not self._at.discover_windows or self._known.is_set(model):
            return
        if self._wants_key and self._clock() >= self._due and (credentials := _credentials(headers)):
            self._ask(credentials, tenant)
        if self._known.listing is None and self._asking is not None:
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
            raise UpstreamTimedOut("The provider did not list its models in time.") from error
        if tenant == NOBODY:
            self._open_names = frozenset(listing.models)
            self._known.announce(listing)
        else:
            self._names.keep(tenant, (frozenset(listing.models), self._clock() + REFRESH_SECONDS))
            # Another key may be shown other models.
            before = self._known.listing
            self._known.announce(listing.beside(before, MOST_LISTED) if before else listing)
        return listing

    async def told(self, headers: Headers = (), tenant: str = NOBODY) -> ListingOutcome:
        """Ask the provider now, and return how it answers."""
        try:
            return await self.discover(headers, tenant)
        except (ListingRefused, StenoError) as error:
            return error

    async def first_told(self) -> ListingOutcome | None:
        """The provider's answer at the start; None where it is not asked, or was not understood."""
        if self._asking is not None:
            await asyncio.wait({self._asking})
        return self.latest_told

    async def look_elsewhere(self) -> str | None:
        """A base URL on the provider's host at which there is an API, where there is none at ours."""
        path = await self._discovery.elsewhere()
        return path and urlsplit(self._at.base_url)._replace(path=path).geturl()

    def _ask(self, headers: Headers, tenant: str = NOBODY) -> None:
        """Ask the provider. One question at a time."""
        if self._asking is None or self._asking.done():
            self._asked_at = self._clock()
            self._due = self._asked_at + RETRY_SECONDS
            self._asking = self._tasks.start(self._try(headers, tenant), "windows")

    async def _try(self, headers: Headers, tenant: str) -> None:
        """Failure is normal: many providers list nothing, and some want a key."""
        pause = RETRY_SECONDS
        try:
            told = self.latest_told = await self.told(headers, tenant)
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
        """Ask anew, without credentials; a provider that wants a key is asked when a caller brings one."""
        while True:
            await asyncio.sleep(max(1.0, min(self._due - self._clock(), REFRESH_CHANGING_SECONDS)))
            if not self._wants_key and self._clock() >= self._due:
                self._ask(())


def _credentials(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if name in ASKED_WITH]
