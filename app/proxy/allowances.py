"""Allowances: what a tenant, and a key that Steno gave out, may have of the providers, counted by all processes
together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from time import time

from msgspec import Struct

from app.core.tokens.usage import UNBILLED, Tariff, Tokens, charge
from app.errors import LimitReached, MoneySpent, NotAllowed
from app.proxy.keyring import Keyring
from app.proxy.tenants import Known
from app.settings import LimitSettings
from app.settings.types import fits
from app.store import UsageRecord
from app.store.client_keys import KeyLimits
from app.store.tables import clean
from app.store.tallies import CONVERSATION, DAY, FOREVER, MINUTE, Tallies, Window
from app.wire.members import Unreadable
from app.wire.requests import other_model_in

REQUESTS = Window("requests", MINUTE)
TOKENS = Window("tokens", DAY)
MONEY = Window("money", DAY)
_OF_MODELS = "this key is for certain models, or for so much money"


class Limit(Struct, frozen=True):
    """Most that a tenant may use in a window."""

    window: Window
    most: float
    name: str
    """Name of the setting, or what the key has."""
    unit: str
    """Unit, such as `tokens a day`."""


class Allowances:
    def __init__(
        self,
        tallies: Tallies,
        limits: LimitSettings,
        tariff_of: Callable[[str, str], Tariff | None],
        keyring: Keyring | None = None,
    ) -> None:
        """`tariff_of`: the prices of a model that was asked for, and of the one that answered."""
        self._tallies = tallies
        self._tariff_of = tariff_of
        self._keyring = keyring
        self._limits = _named("limits.", limits.requests_per_minute, limits.tokens_per_day, limits.money_per_day)
        self._counts_requests = limits.requests_per_minute is not None
        self.counts_usage = keyring is not None or any(limit.window is not REQUESTS for limit in self._limits)

    def admit(self, known: Known) -> None:
        """Count a request that may go to a provider. Raises `LimitReached` and `MoneySpent`."""
        own = self._limits if known.limits is None else (*self._limits, *_of_key(known.limits))
        for limit in own:
            if self._tallies.used(known.tenant, limit.window) >= limit.most:
                raise self._refusal(limit)
        if self._counts_requests:
            self._tallies.add(known.tenant, REQUESTS, 1)

    def admit_conversation(self, known: Known, conversation_id: str, models: Iterable[str]) -> None:
        """Let a conversation go on with models: its own, and those of its summaries. Raises `MoneySpent` and
        `NotAllowed`."""
        for model in models:
            self._check_price(known, model)
        most = None if known.limits is None else known.limits.money_per_conversation
        if most is not None and self._tallies.used(known.tenant, _of_conversation(conversation_id)) >= most:
            text = f"This conversation cost {most:,g}, which is all that this key allows. Begin another one."
            raise MoneySpent(text, None)

    def admit_apart(self, known: Known, model: str) -> None:
        """Let a request pass of which nobody knows the conversation. Raises `NotAllowed`."""
        self._check_price(known, model)
        if known.limits is not None and known.limits.money_per_conversation is not None:
            raise NotAllowed("This key has a limit for each conversation, and this request shows none.")

    def _check_price(self, known: Known, model: str) -> None:
        """Raises `NotAllowed` where a key may spend so much, and nobody knows what the model costs."""
        limits = known.limits
        if limits is None or not limits.has_money:
            return
        if self._tariff_of(model, "") is None:
            raise NotAllowed(f"This key may spend so much, and {model!r:.100} has no price here. Add it to `prices`.")

    def spent(self, record: UsageRecord) -> None:
        """Count an answered call. If no usage was reported, the estimated prompt counts, and what `wrote` is told."""
        if record.status != 200:
            return
        prompt, cost = record.tokens.prompt, record.cost
        if prompt is None:
            prompt = record.forwarded or 0
            cost = self._cost_of(record.model, Tokens(prompt, record.tokens.completion or 0))
        self._count(record.tenant, prompt + (record.tokens.completion or 0), cost, record.conversation_id)

    def wrote(self, tenant: str, conversation_id: str, model: str, estimated: int) -> None:
        """Count an answer whose usage nobody told, such as that of a client who left."""
        self._count(tenant, estimated, self._cost_of(model, Tokens(0, estimated)), conversation_id)

    def _count(self, tenant: str, tokens: int, cost: float | None, conversation_id: str) -> None:
        self._tallies.add(tenant, TOKENS, tokens)
        if cost is None:
            return
        self._tallies.add(tenant, MONEY, cost)
        if conversation_id and self._keyring is not None and self._keyring.limits_conversations:
            self._tallies.add(tenant, _of_conversation(conversation_id), cost)

    def _cost_of(self, model: str, estimated: Tokens) -> float | None:
        return charge(estimated, UNBILLED, self._tariff_of(model, "")).cost

    def _refusal(self, limit: Limit) -> LimitReached:
        seconds = self._tallies.seconds_left(limit.window)
        ends = datetime.fromtimestamp(round(time() + seconds), UTC)  # A whole second: the clocks differ by less.
        text = (
            f"The limit of {limit.most:,g} {limit.unit} ({limit.name}) is reached."
            f" It begins anew at {ends:%Y-%m-%dT%H:%M:%SZ}, in {ceil(seconds)} s."
        )
        return (MoneySpent if limit.window is MONEY else LimitReached)(text, seconds)


def check_use(known: Known, upstream: str, model: str | None = None, *, is_measured: bool = True) -> None:
    """Raise `NotAllowed` if the caller's key may not be used for this upstream or model, or not for what is not
    measured."""
    limits = known.limits
    if limits is None:
        return
    if limits.upstreams and upstream not in limits.upstreams:
        raise NotAllowed(f"This key may be used for the upstreams {', '.join(limits.upstreams)} only.")
    if not is_measured and limits.needs_measuring:
        raise NotAllowed("This key has limits, and what is asked for cannot be measured by them.")
    if model is not None and limits.models and not any(fits(model, glob) for glob in limits.models):
        raise NotAllowed(f"This key may be used for the models {', '.join(limits.models)} only.")


def check_body(known: Known, body: bytes) -> None:
    """Raise `NotAllowed` if a request may reach another model than its `model` says, and its key is for certain models,
    or for so much money."""
    limits = known.limits
    if limits is None or not (limits.models or limits.has_money):
        return
    try:
        other = other_model_in(body)
    except Unreadable as error:
        raise NotAllowed(f"The model of this request cannot be known, and {_OF_MODELS}: {error}") from error
    if other is not None:
        raise NotAllowed(f"{other!r:.100} can name another model, and {_OF_MODELS}. Leave it out.")


@lru_cache(1_000)
def _of_key(limits: KeyLimits) -> Sequence[Limit]:
    return _named("this key's ", None, limits.tokens_per_day, limits.money_per_day)


def _named(whose: str, requests: float | None, tokens: float | None, money: float | None) -> tuple[Limit, ...]:
    given = (
        (REQUESTS, requests, "requests_per_minute", "requests a minute"),
        (TOKENS, tokens, "tokens_per_day", "tokens a day"),
        (MONEY, money, "money_per_day", "of money a day"),
    )
    return tuple(Limit(window, most, f"{whose}{name}", unit) for window, most, name, unit in given if most is not None)


def _of_conversation(conversation_id: str) -> Window:
    return Window(CONVERSATION + clean(conversation_id), FOREVER)
