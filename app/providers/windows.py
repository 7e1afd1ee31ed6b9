"""Context windows: config > what the provider announces > learnt from an overflow > the bundled registry > a guess.

`known_windows` has all of these but the learnt ones, `listings` asks the provider for what it announces, and
`learnt_limits` remembers what it refused. A learnt limit lowers what is configured or announced and never raises it;
over registry and guess it simply wins. It is kept for a day, for each provider, model and tenant, and stored for the
other replicas. It holds for the tenant that learnt it, until it is answered a larger prompt; for everybody once a
second tenant has learnt about the same. Only tenants whom the provider answered confirm each other: a made-up key
confirms nothing. A limit is none that is smaller than a prompt the tenant, or two others, were answered within a day,
or less than half of what the operator set, unless a smaller prompt was answered after the refusal: then it holds for
that tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from msgspec.structs import replace

from app.core.limits.budget import Window
from app.core.limits.overflow import Overflow
from app.http.upstream import Headers, Upstream
from app.providers.known_windows import KnownWindows
from app.providers.learnt_limits import LearntLimits
from app.providers.listings import NOBODY, Listings
from app.providers.registry import bundled
from app.runtime.owned import OwnedTasks
from app.settings import ModelSettings, UpstreamSettings
from app.store import Store

_FINE_TUNE = "ft:"


class Windows:
    """The window of every model at one upstream. `of` answers from memory; all else happens beside the requests."""

    def __init__(
        self,
        models: Sequence[ModelSettings],
        guess: int,
        at: UpstreamSettings,
        upstream: Upstream,
        store: Store,
        clock: Callable[[], float] = monotonic,
        asked_with: Headers = (),
    ) -> None:
        """`guess`: tokens of the window of a model that nobody knows. `asked_with`: headers of every question, where
        the caller's have none of that name."""
        self._tasks = OwnedTasks()
        self._known = KnownWindows(models, guess)
        self.listings = Listings(self._known, at, upstream, self._tasks, clock, asked_with)
        self.learnt = LearntLimits(store, at.base_url, self._tasks, clock)

    def start(self) -> None:
        """Reads the registry; in the background asks the provider, without credentials, and reads what was learnt."""
        bundled()
        self.learnt.start()
        self.listings.start()

    async def stop(self) -> None:
        await self._tasks.drain(0.0)

    # What is known

    def of(self, model: str, tenant: str = NOBODY, guess: int | None = None, asked: int | None = None) -> Window:
        """The model's window as far as it is known now to the tenant.

        `guess` is the window of a model that nobody knows, as the policy of the conversation has it that goes to this
        model. Everybody else takes that of the operator's preset; so does who writes summaries, because a policy is
        chosen for a conversation and says nothing about the model that summarises it. `asked` is the window that a
        request's headers ask for; what is learnt with it says nothing of requests that do not, nor the other way.
        """
        base = self._base(model, asked, guess)
        return self.learnt.lower(tenant, _learnt_as(model, asked), base)

    def _base(self, model: str, asked: int | None, guess: int | None = None) -> Window:
        """The window without refusals. What the operator set stands, whatever a request asks for."""
        base = self._known.of(model)
        if guess is not None and base.source == "default":
            base = replace(base, context=guess)
        if asked is None or base.source == "config" or asked <= base.context:
            return base
        return replace(base, context=asked, max_input=None, note="asked for by the request's headers")

    @property
    def revision(self) -> int:
        """Rises whenever `of` may answer anew, but for what a learnt limit's end changes."""
        return self._known.revision + self.learnt.revision

    def names(self) -> list[str]:
        """The models that are known by name: listed, configured without a glob, or with a learnt limit."""
        listing = self._known.listing
        return self._named(self.learnt.models(), listing.models if listing else ())

    def names_for(self, tenant: str, used: Iterable[str]) -> list[str]:
        """Names that a tenant may know who used these: a learnt limit, or a fine-tune, reveals its users, and a list
        that was read with a key of whose key it is."""
        return self._named(used, self.listings.names_for(tenant))

    def listed(self, model: str, tenant: str = NOBODY) -> bool:
        return model in self.listings.names_for(tenant)

    def _named(self, used: Iterable[str], listed: Iterable[str]) -> list[str]:
        names = (name for name in listed if not name.startswith(_FINE_TUNE))
        return sorted({*used, *self._known.names_set(), *names})

    # Learning from refusals and answers

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
        learnt_as, base = _learnt_as(model, asked), self._base(model, asked)
        self.learnt.learn(tenant, learnt_as, base, overflow, output, is_measured=is_measured)

    def succeeded(self, tenant: str, model: str, prompt_tokens: int, asked: int | None = None) -> None:
        self.learnt.succeeded(tenant, model if asked is None else _learnt_as(model, asked), prompt_tokens)


def _learnt_as(model: str, asked: int | None) -> str:
    """Key of a learnt limit: the model's name, and the window that a request asked for."""
    return model if asked is None else f"{model}[{asked}]"
