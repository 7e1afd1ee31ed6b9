"""The bundled registry: windows and list prices of models as public tables know them (`scripts/generate_models.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from app.core.tokens.rules import LONGEST_MODEL
from app.core.tokens.usage import Price

DATA = Path(__file__).parent / "data" / "models.json"
PRICES = DATA.with_name("prices.json")

MOST_SEPARATORS = 24
"""What has more of them is no model's name, and is not taken apart: the known names have at most nine."""
_OF_ITS_OWN = frozenset({"audio", "image", "live", "ocr", "realtime", "speech", "transcribe", "tts", "video", "voice"})
"""What says in a name that the model is another one than without it, with another window."""
_SEPARATORS = re.compile(r"[-@:/.]")
_RELEASE = re.compile(r"(?:[-@](?:\d{4}-\d\d-\d\d|\d{8}|\d{6}|\d{3,4}|latest))?(?:-v\d+)?(?::\w+)?$")
"""A date, a tag or a version at the end of a name: another release of the same model, at the same price."""
_VENDOR = re.compile(r"[a-z]+(?:-[a-z]+)*\.")
"""Bedrock's regions and vendors: `us.anthropic.claude-...`."""


class BundledModel(NamedTuple):
    """A model's numbers, in tokens."""

    context: int
    """Prompt and completion together."""
    max_input: int | None
    """What the prompt may have, where that is less than the context."""
    max_output: int | None


class ListPrice(NamedTuple):
    """What a model's vendor, or the host in its name, asks for a million tokens, in US dollars."""

    prompt: float
    completion: float
    cached: float | None
    written: float | None


Models = Mapping[str, BundledModel]
ListPrices = Mapping[str, ListPrice]


class _Table(msgspec.Struct):
    models: dict[str, BundledModel]


class _PriceTable(msgspec.Struct):
    prices: dict[str, ListPrice]


@cache
def list_prices() -> ListPrices:
    """The table of prices, read once, at the first look-up."""
    return msgspec.json.decode(PRICES.read_bytes(), type=_PriceTable).prices


def price(model: str) -> Price | None:
    """The list price of a model, if it has one under this name."""
    found = look_up_price(model, list_prices())
    return None if found is None else Price(*found, source="registry")


@cache
def bundled() -> Models:
    """The table, read once, at the first look-up."""
    return msgspec.json.decode(DATA.read_bytes(), type=_Table).models


def look_up(model: str, models: Models) -> tuple[str, BundledModel] | None:
    """The entry that fits the name best, with the entry's own name."""
    return next(((name, models[name]) for name in names_of(model) if name in models), None)


def look_up_price(model: str, prices: ListPrices) -> ListPrice | None:
    """That of the name, without provider and vendor, or without its date or tag, too.

    Nothing else is taken from it: a `-pro` or a `-mini` has another price, and so has a model that was tuned.
    """
    name = model[:LONGEST_MODEL].strip().lower()
    if len(_SEPARATORS.findall(name)) > MOST_SEPARATORS:
        return None
    whole = [spelled(each) for each in _without_prefixes(name)]
    names = (*whole, *(_RELEASE.sub("", each) for each in whole))
    return next((prices[each] for each in names if each in prices), None)


def names_of(model: str) -> Iterator[str]:
    """The name, then what is left of it without provider, vendor, date, tag and variant, the closest first.

    A name is shortened only as long as it holds a digit: `gpt-4o-2024-08-06`, `gpt-4o-mine` and
    `ft:gpt-4o:org::id` are gpt-4o, but `mistral-mine` is not every Mistral.
    """
    name = model[:LONGEST_MODEL].strip().lower().removeprefix("ft:")
    if len(_SEPARATORS.findall(name)) > MOST_SEPARATORS:
        yield spelled(name)
        return
    whole = [spelled(name) for name in _without_prefixes(name)]
    yield from whole
    for name in whole:
        yield from _shortened(name)


def spelled(name: str) -> str:
    """In lower case, and Anthropic's and xAI's models as their vendors write them: elsewhere 4-5 is 4.5."""
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


def _shortened(name: str) -> Iterator[str]:
    while name and re.search(r"\d", name):
        yield name
        last = re.split(r"[-@:/]", name)[-1]
        if last in _OF_ITS_OWN:
            return
        name = name[: -len(last) - 1]
