"""Bundled models: windows and list prices of the vendors' own models (`data/models.json`).

The setting `models` overrides this table. On 2026-11-29, the package genai-prices could not replace this table: it
priced 133 of 165 recorded answers right, and this table priced all 165 right. The package had older prices, no fees for
searches and regions, no tuned models, and no window for 1,511 of 1,901 known names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from app.tokens.costs import Price, Steps, Tariff
from app.tokens.counting_rules import LONGEST_MODEL

T = TypeVar("T")

DATA = Path(__file__).parent / "data" / "models.json"

LEAST_STEP = 100_000
"""Smallest price step that Steno avoids. A price step is a prompt size in tokens at which the price rises. Steno does
not avoid smaller steps, because the prompt would have too little room."""
STEP_SHARE = 260 / 272
"""Share of a price step at which a compaction is due, so that the next turn does not pass the step."""

CAPS_REMEMBERED = 1_000
"""Number of models whose cap is cached, because parsing a name is slow."""
MOST_SEPARATORS = 24
"""Maximum number of separators in a name that Steno parses. The known names have at most nine."""
_OF_ITS_OWN = frozenset({"audio", "image", "live", "ocr", "realtime", "speech", "transcribe", "tts", "video", "voice"})
"""Parts of a name that mark a different model with another window."""
_SEPARATORS = re.compile(r"[-@:/.]")
_RELEASE = re.compile(r"(?:[-@](?:\d{4}-\d\d-\d\d|\d{8}|\d{6}|\d{3,4}|latest))?(?:-v\d+)?(?::\w+)?$")
"""Date, tag or version at the end of a name. All releases of a model have the model's price."""
_TUNED = re.compile(r"ft:(?P<base>[^:]+)(?::.*)?", re.IGNORECASE)
"""Names of OpenAI models that a customer fine-tuned."""
_VENDOR = re.compile(r"[a-z]+(?:-[a-z]+)*\.")
"""Prefixes for region and vendor on Bedrock: `us.anthropic.claude-...`."""

BundledWindow = tuple[int, int | None, int | None]
"""Limits in tokens (None: no limit): of prompt and completion together, of the prompt alone, and of the completion."""


class ListedPrice(NamedTuple):
    """US dollars per million tokens, for prompts of more than `above` tokens."""

    above: int
    prompt: float
    completion: float
    cached: float | None = None
    written: float | None = None
    written_hour: float | None = None
    audio: float | None = None
    speech: float | None = None


class ListedModel(Struct, frozen=True):
    window: BundledWindow | None = None
    price: tuple[ListedPrice, ...] = ()
    search: float | None = None
    """US dollars per million web searches."""
    tiers: dict[str, tuple[ListedPrice, ...]] = {}
    regions: dict[str, float] = {}
    """Price factors by region. The provider's answer names the region."""
    cap: int | None = None
    """Prompt tokens above which a compaction is due in any window. Most models have None: the usual cap applies."""

    def tariff(self, name: str) -> Tariff:
        """Return the list prices as a tariff. `name`: the model's name in the request or the answer."""

        def steps(prices: tuple[ListedPrice, ...]) -> Steps:
            return tuple([(price.above, Price(*price[1:], search=self.search)) for price in prices])

        tiers = {tier: steps(prices) for tier, prices in self.tiers.items()}
        return Tariff(name, "registry", steps(self.price), tiers, self.regions)


class _Table(Struct, frozen=True):
    date: date
    models: dict[str, ListedModel]


@cache
def _table() -> _Table:
    return msgspec.json.decode(DATA.read_bytes(), type=_Table)


@cache
def bundled() -> Mapping[str, BundledWindow]:
    return {name: model.window for name, model in _table().models.items() if model.window is not None}


@cache
def list_prices() -> Mapping[str, ListedModel]:
    return {name: model for name, model in _table().models.items() if model.price}


def tariff(asked: str, answered: str = "") -> Tariff | None:
    """Return the list prices of the model that answered, or if they are unknown, of the requested model.

    But if the requested name contains a host with its own prices for the model, return the host's prices, because the
    name in the answer does not contain the host.
    """
    by_asked, by_answered = _priced(asked), _priced(answered)
    if by_answered is None or (by_asked and _is_of_host(by_asked[1]) and _bare(asked) == _bare(answered)):
        return by_asked and by_asked[2].tariff(by_asked[0])
    return by_answered[2].tariff(by_answered[0])


def _priced(model: str) -> tuple[str, str, ListedModel] | None:
    """Return the name that has a price, the name of its entry, and the entry. A fine-tuned model without a price of its
    own has the price of its base model."""
    tuned = _TUNED.fullmatch(model)
    for name in (model,) if tuned is None else (f"ft:{tuned['base']}", tuned["base"]):
        if (found := look_up_release(name, list_prices())) is not None:
            return name, *found
    return None


def _is_of_host(name: str) -> bool:
    return "/" in name or _VENDOR.match(name) is not None


def _bare(model: str) -> str:
    """Return the name without host, vendor, date and tag."""
    *_, name = _without_prefixes(model[:LONGEST_MODEL].strip().lower())
    return _RELEASE.sub("", spelled(name))


@lru_cache(CAPS_REMEMBERED)
def cap_of(model: str, usual: int) -> int:
    """Return the prompt tokens at which a compaction is due in any window: the model's `cap`, or else `usual`. The
    result is at most `STEP_SHARE` of each price step, except steps below `LEAST_STEP`."""
    known, price = look_up_release(model, _table().models), tariff(model)
    cap = (known[1].cap if known else None) or usual
    if price is not None:
        dearer = [above for above, step in price.steps if step.prompt > price.base.prompt and above >= LEAST_STEP]
        cap = min([cap, *[int(STEP_SHARE * above) for above in dearer]])
    return cap


def look_up(model: str, table: Mapping[str, T]) -> tuple[str, T] | None:
    """Return name and value of the entry whose name is closest to the model's name."""
    return _first(names_of(model), table)


def look_up_release(model: str, table: Mapping[str, T]) -> tuple[str, T] | None:
    """Return name and value of the model's entry. The entry's name may lack provider, vendor, date and tag.

    No other part may be missing: `-pro` and `-mini` are other models, and so are fine-tuned models.
    """
    whole = _whole_names(model)
    return _first([*whole, *[_RELEASE.sub("", each) for each in whole]], table)


def _first(names: Iterable[str], table: Mapping[str, T]) -> tuple[str, T] | None:
    for name in names:
        if name in table:
            return name, table[name]
    return None


def names_of(model: str) -> Iterator[str]:
    """Yield the name, then shorter names without provider, vendor, date, tag and variant, the closest first.

    A shortened name must contain a digit: `gpt-4o-2024-08-06`, `gpt-4o-mine` and `ft:gpt-4o:org::id` become gpt-4o, but
    `mistral-mine` does not become `mistral`.
    """
    whole = _whole_names(model, "ft:")
    yield from whole
    for shortened in whole:
        name = shortened
        while name and re.search(r"\d", name):
            yield name
            last = re.split(r"[-@:/]", name)[-1]
            if last in _OF_ITS_OWN:
                break
            name = name[: -len(last) - 1]


def _whole_names(model: str, prefix: str = "") -> list[str]:
    """Return the name with and without providers and vendor. Return no names if `model` has too many separators."""
    name = model[:LONGEST_MODEL].strip().lower().removeprefix(prefix)
    if len(_SEPARATORS.findall(name)) > MOST_SEPARATORS:
        return []
    return [spelled(each) for each in _without_prefixes(name)]


def spelled(name: str) -> str:
    """Return the name in lower case, with Anthropic's and xAI's versions as the vendors write them: 4-5, not 4.5."""
    host, slash, bare = name.lower().rpartition("/")
    return host + slash + (bare.replace(".", "-") if bare.startswith(("claude", "grok")) else bare)


def _without_prefixes(name: str) -> Iterator[str]:
    yield name
    while "/" in name:
        name = name.partition("/")[2]
        yield name
    while prefix := _VENDOR.match(name):
        name = name[prefix.end() :]
        yield name
