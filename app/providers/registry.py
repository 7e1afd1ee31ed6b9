"""The bundled registry: windows and list prices of the vendors' own models (`data/models.json`).

The settings override it (`models`). genai-prices cannot replace it (2026-11-29): it priced 133 of 165 recorded answers
right, this table all. It has no fees for searches and regions, no tuned models, older prices, and no window for 1,511
of the 1,901 known names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from app.tokens.rules import LONGEST_MODEL
from app.tokens.usage import Price, Steps, Tariff

T = TypeVar("T")

DATA = Path(__file__).parent / "data" / "models.json"

LEAST_STEP = 100_000
"""Tokens; a price that rises below is that of any longer prompt, and to keep below would leave no room to work in."""
STEP_SHARE = 260 / 272
"""Share of a price step that prompts are kept to: the next turn must not pass it."""

CAPS_REMEMBERED = 1_000
"""Models whose cap is remembered: taking a name apart is slow."""
MOST_SEPARATORS = 24
"""Most separators of a model's name; what has more is not taken apart: the known names have at most nine."""
_OF_ITS_OWN = frozenset({"audio", "image", "live", "ocr", "realtime", "speech", "transcribe", "tts", "video", "voice"})
"""Parts of a name with which the model is another one than without them, with another window."""
_SEPARATORS = re.compile(r"[-@:/.]")
_RELEASE = re.compile(r"(?:[-@](?:\d{4}-\d\d-\d\d|\d{8}|\d{6}|\d{3,4}|latest))?(?:-v\d+)?(?::\w+)?$")
"""A date, a tag or a version at the end of a name: another release of the same model, at the same price."""
_TUNED = re.compile(r"ft:(?P<base>[^:]+)(?::.*)?", re.IGNORECASE)
"""OpenAI's names of models that a customer tuned."""
_VENDOR = re.compile(r"[a-z]+(?:-[a-z]+)*\.")
"""Bedrock's regions and vendors: `us.anthropic.claude-...`."""


class BundledModel(NamedTuple):
    """A model's numbers, in tokens."""

    context: int
    """Prompt and completion together."""
    max_input: int | None
    """Tokens that the prompt may have, where that is less than the context."""
    max_output: int | None


class ListedPrice(NamedTuple):
    """US dollars for a million tokens, for prompts of more than so many."""

    above: int
    prompt: float
    completion: float
    cached: float | None = None
    written: float | None = None
    written_hour: float | None = None
    audio: float | None = None
    speech: float | None = None


class ListedModel(Struct, frozen=True):
    window: BundledModel | None = None
    price: tuple[ListedPrice, ...] = ()
    search: float | None = None
    """Price of a million web searches."""
    tiers: dict[str, tuple[ListedPrice, ...]] = {}
    """Prices of service tiers."""
    regions: dict[str, float] = {}
    """Factors, by the region an answer names."""
    cap: int | None = None
    """Tokens at which a compaction is due in any window, where the model is known to read long prompts well."""

    def tariff(self, name: str) -> Tariff:
        """The list prices, under the name by which the model was called."""

        def steps(prices: tuple[ListedPrice, ...]) -> Steps:
            return tuple([(price.above, Price(*price[1:], search=self.search)) for price in prices])

        tiers = {tier: steps(prices) for tier, prices in self.tiers.items()}
        return Tariff(name, "registry", steps(self.price), tiers, self.regions)


class _Table(Struct, frozen=True):
    date: date
    models: dict[str, ListedModel]


@cache
def _table() -> _Table:
    """Read once, at the first look-up."""
    return msgspec.json.decode(DATA.read_bytes(), type=_Table)


@cache
def bundled() -> Mapping[str, BundledModel]:
    return {name: model.window for name, model in _table().models.items() if model.window is not None}


@cache
def list_prices() -> Mapping[str, ListedModel]:
    return {name: model for name, model in _table().models.items() if model.price}


def day_of_list_prices() -> date:
    return _table().date


def tariff(asked: str, answered: str = "") -> Tariff | None:
    """The list prices of the model that answered, where they are known, or else of the one that was asked for.

    An answer does not name the host that was asked: where that has prices of its own for the same model, they hold.
    """
    by_asked, by_answered = _priced(asked), _priced(answered)
    if by_answered is None or (by_asked and _is_of_host(by_asked[1]) and _bare(asked) == _bare(answered)):
        return by_asked and by_asked[2].tariff(by_asked[0])
    return by_answered[2].tariff(by_answered[0])


def _priced(model: str) -> tuple[str, str, ListedModel] | None:
    """Name that the price is of, its entry in the table, and price: of a model that was tuned and has none of its own,
    those of its base."""
    tuned = _TUNED.fullmatch(model)
    for name in (model,) if tuned is None else (f"ft:{tuned['base']}", tuned["base"]):
        if (found := look_up_release(name, list_prices())) is not None:
            return name, *found
    return None


def _is_of_host(name: str) -> bool:
    return "/" in name or _VENDOR.match(name) is not None


def _bare(model: str) -> str:
    """The name without host, vendor, date and tag."""
    *_, name = _without_prefixes(model[:LONGEST_MODEL].strip().lower())
    return _RELEASE.sub("", spelled(name))


def days_since(day: date) -> int:
    return max(0, (datetime.now(UTC).date() - day).days)


@lru_cache(CAPS_REMEMBERED)
def cap_of(model: str, usual: int) -> int:
    """Tokens over which a compaction of the model's prompts is due in any window: the usual ones, or more where public
    results say that it reads them well, and less where its list price rises before."""
    known, price = look_up_release(model, _table().models), tariff(model)
    cap = (known[1].cap if known else None) or usual
    if price is not None:
        dearer = [above for above, step in price.steps if step.prompt > price.base.prompt and above >= LEAST_STEP]
        cap = min([cap, *[int(STEP_SHARE * above) for above in dearer]])
    return cap


def look_up(model: str, table: Mapping[str, T]) -> tuple[str, T] | None:
    """The entry that fits the name best, with the entry's own name."""
    return _first(names_of(model), table)


def look_up_release(model: str, table: Mapping[str, T]) -> tuple[str, T] | None:
    """The entry of the name, without provider and vendor, or without its date or tag, too; with the entry's own name.

    Nothing else is taken from it: a `-pro` or a `-mini` is another model, and so is one that was tuned.
    """
    whole = _whole_names(model)
    return _first([*whole, *[_RELEASE.sub("", each) for each in whole]], table)


def _first(names: Iterable[str], table: Mapping[str, T]) -> tuple[str, T] | None:
    for name in names:
        if name in table:
            return name, table[name]
    return None


def names_of(model: str) -> Iterator[str]:
    """The name, then what is left of it without provider, vendor, date, tag and variant, the closest first.

    A name is shortened only as long as it holds a digit: `gpt-4o-2024-08-06`, `gpt-4o-mine` and
    `ft:gpt-4o:org::id` are gpt-4o, but `mistral-mine` is not every Mistral.
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
    """The name with and without its providers and vendor; none of a name with too many separators."""
    name = model[:LONGEST_MODEL].strip().lower().removeprefix(prefix)
    if len(_SEPARATORS.findall(name)) > MOST_SEPARATORS:
        return []
    return [spelled(each) for each in _without_prefixes(name)]


def spelled(name: str) -> str:
    """The name in lower case, and Anthropic's and xAI's models as their vendors write them: elsewhere 4-5 is 4.5."""
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
