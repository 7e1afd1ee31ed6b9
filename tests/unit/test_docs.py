"""The documents: their examples run, their samples have the shape of real answers, and they keep to the house rules."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from app.api import openapi
from app.cli.main import COMMANDS
from app.compaction.cost_gate import LEAST_REQUESTS
from app.compaction.decision import Status
from app.conversation.reasons import Code
from app.errors import StenoError
from app.formats.compaction_events import EVENT_SHAPES
from app.formats.requests import OPTIONS
from app.http.credentials import CREDENTIALS, QUERY_KEYS
from app.http.headers import FOR_OTHER_PROVIDERS, FOR_OTHER_PROVIDERS_PREFIX
from app.settings import Settings, environment_name
from lab.benchmarks.costs import CHANGE, GROWTH, INSTRUCTIONS, SUMMARIES, SUMMARISED, TAIL, examples
from lab.simulator import Simulator
from scripts.build_docs import OUTSIDE, place
from scripts.generate_settings import generated, keys
from tests.e2e import running
from tests.e2e.histories import turns
from tests.e2e.running import Steno
from tests.shown_examples import shown

ROOT = Path(__file__).parents[2]
REST = (ROOT / "docs" / "rest.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
KEY = "sk-docs"
ADDRESS = "http://127.0.0.1:8080"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block with the heading above it."""

    language: str
    text: str
    heading: str


def blocks(page: str, *languages: str) -> list[Block]:
    found = []
    for match in _BLOCK.finditer(page):
        headings = re.findall(r"^#+ (.+)$", page[: match.start()], re.MULTILINE)
        found.append(Block(match[1], match[2], headings[-1]))
    return [block for block in found if not languages or block.language in languages]


@pytest.fixture
def steno(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steno]:
    running.forget_environment(monkeypatch)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    with Simulator(window=running.WINDOW, models="any").serve() as provider:
        steno = running.start(provider.url, {"storage": {"messages": True}})  # There are routes for them alone.
        yield steno
        steno.stop()


# README


@pytest.mark.parametrize("page", ["README.md", "docs/chat-interfaces.md"])
def test_python_examples_run_in_order_and_print_what_the_page_says(
    steno: Steno, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """README's need nothing but a running Steno; the other pages' find a key and a long history."""
    is_self_contained = page == "README.md"
    if is_self_contained:
        for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.delenv(name)
    printed: list[str] = []
    # Not what goes to standard output: Steno runs in this process and may log there.
    names: dict[str, Any] = {"print": lambda *values: printed.append(" ".join(map(str, values)) + "\n")}
    examples = blocks((ROOT / page).read_text())
    for number, (block, following) in enumerate(pairwise([*examples, None])):
        if block is None or block.language != "python":
            continue
        if not is_self_contained:
            names["messages"] = turns(15, first=100 * number)
        printed.clear()
        exec(block.text.replace(ADDRESS, steno.url), names)  # noqa: S102 - our own pages
        if "print(" in block.text:
            assert following is not None
            assert "".join(printed) == following.text
    for name in {"client", "claude"} & names.keys():
        names[name].close()


def test_every_header_with_a_credential_is_told_and_every_one_that_may_go_anywhere() -> None:
    keys = (ROOT / "docs" / "upstreams.md").read_text().partition("## Keys")[2].partition("##")[0]
    told = set(re.findall(r"`([a-z_-]+)\*?`", keys))
    assert {
        name.decode() for name in CREDENTIALS | QUERY_KEYS | FOR_OTHER_PROVIDERS | {FOR_OTHER_PROVIDERS_PREFIX}
    } <= told


# REST


def test_each_error_code_stands_in_the_list_with_its_status_and_no_other_does() -> None:
    table = REST.partition("| code | status | |\n|---|---|---|\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", table, re.MULTILINE)
    assert {code: int(status) for code, status in rows} == {error.code: error.status for error in every_error()}
    assert len(rows) == len({code for code, _ in rows})


def every_error(root: type[StenoError] = StenoError) -> Iterator[type[StenoError]]:
    yield root
    for error in root.__subclasses__():
        yield from every_error(error)


def test_rest_describes_every_endpoint(steno: Steno) -> None:
    schema = httpx2.get(f"{steno.url}/openapi.json").json()
    described = set(re.findall(r"^### ([A-Z]+ /[^\s?]+)\S*$", REST, re.MULTILINE))
    real = {
        f"{method.upper()} {path.replace('{conversation_id}', '{id}').replace('{summary_id}', '{summary}')}"
        for path, methods in schema["paths"].items()
        for method in methods
    }
    proxied = {route for route in real if " /v1" in route}
    assert described == real - proxied - {"GET /healthz"}
    routes = REST.partition("### Routes")[2].partition("###")[0]
    assert all(f"{route.split()[1]}`" in routes for route in proxied | {"GET /healthz"})


# All pages


def offences(rule: Callable[[Path, str], Iterable[object]]) -> list[str]:
    """Everything on all pages that breaks a rule, each with its page."""
    return [f"{page.relative_to(ROOT)}: {found}" for page in PAGES for found in rule(page, page.read_text())]


def test_links_lead_somewhere() -> None:
    def dead(page: Path, text: str) -> Iterator[str]:
        targets = re.findall(r"\]\(([^)#]+)", text)
        return (to for to in targets if not (to.startswith("https://") or (page.parent / to).exists()))

    assert offences(dead) == []


def test_pages_name_no_path_of_a_machine() -> None:
    assert offences(lambda _, text: re.findall(r"/(?:work|root|home|Users|tmp)/", text)) == []


def test_settings_that_pages_name_exist() -> None:
    sections = "|".join(Settings.model_fields)
    known = keys()
    assert offences(lambda _, text: {*re.findall(rf"`((?:{sections})(?:\.[a-z_]+)+)`", text)} - known) == []


def test_variables_that_pages_name_exist() -> None:
    known = {*map(environment_name, keys())}
    known |= {"STENO_CONFIG", "STENO_HOME", "STENO_SECRET_FILE", "STENO_ALLOW_UNAUTHENTICATED", "STENO_"}
    assert offences(lambda _, text: {*re.findall(r"\bSTENO_\w*", text)} - known) == []


_FILE = re.compile(r"`((?:config|scripts|lab|requirements|examples)/[\w./-]+\.\w+)`")


def started(page: str, program: str) -> set[str]:
    """What the program is told to do on a page: in a line, in an indented example, in a block for the shell."""
    indented = "".join(f"    {line}" for block in blocks(page, "sh") for line in block.text.splitlines(keepends=True))
    return set(re.findall(rf"(?:`|^ {{4}}|/bin/){program} ([a-z]+)", page + "\n" + indented, re.MULTILINE))


def test_commands_and_files_that_pages_name_exist() -> None:
    commands = {*COMMANDS}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert offences(lambda _, text: started(text, "steno") - commands) == []
    assert offences(lambda _, text: started(text, "make") - targets) == []
    assert offences(lambda _, text: (file for file in _FILE.findall(text) if not (ROOT / file).is_file())) == []


TESTS = ROOT / "tests"
_TEST = re.compile(r"`((?:e2e|integration|release|unit)/\w+\.py|exchanges/cases/\w+/\w+\.yaml)::(\w+)`")
_EXCHANGES = re.compile(r"`(exchanges/[\w/]+\.yaml)`")


def test_tests_that_pages_name_exist() -> None:
    def unknown(page: Path, text: str) -> Iterator[str]:
        named = _TEST.findall(text)
        assert page.name not in {"reliability.md", "security.md"} or named
        yield from (
            f"{file}::{name}"
            for file, name in named
            if not re.search(rf"def {name}\(|^  {name}:", (TESTS / file).read_text(), re.MULTILINE)
        )
        yield from (file for file in _EXCHANGES.findall(text) if not (TESTS / file).is_file())

    assert offences(unknown) == []


def test_routes_that_pages_name_exist() -> None:
    paths = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    known = {(method.upper(), re.sub(r"\{\w+\}", "{}", path)) for path, methods in paths.items() for method in methods}

    def unknown(_: Path, text: str) -> set[tuple[str, str]]:
        named = re.findall(r"`(GET|PUT|POST|PATCH|DELETE) (/context/[^`?\s]*)", text)
        return {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in named} - known

    assert offences(unknown) == []


# The wire: headers, members, statuses, codes

STREAMS = ROOT / "docs" / "streams"
INTERNAL = {"x-context-call"}
"""On summary calls, to the provider."""


def section(heading: str) -> str:
    return re.split(r"^##+ ", REST.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def first_column(heading: str) -> set[str]:
    """The words in code in the first cell of each row of the section's table, but for its head."""
    rows = re.findall(r"^\| (`[^|]+?) +\|", section(heading).partition("|---|")[2], re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_headers_of_steno_that_pages_name_exist() -> None:
    known = openapi.HEADERS.keys() | openapi.PARAMETERS.keys() | INTERNAL
    assert offences(lambda _, text: {*re.findall(r"\b(x-context-[a-z-]*[a-z])", text)} - known) == []


def test_error_codes_and_reasons_that_pages_name_exist() -> None:
    known = {error.code for error in every_error()} | {shown(code).rstrip(". :") for code in Code}
    named = re.compile(r"\b(?:codes?|error|reason|refused with \d+)\s+\(?`([a-z]+(?:_[a-z]+)+)`")
    assert offences(lambda _, text: {*named.findall(text)} - known) == []


def test_every_answer_header_is_listed_and_seen_in_a_recording() -> None:
    assert first_column("Headers") == openapi.HEADERS.keys()
    answered = "".join(file.read_text().partition("\n\nHTTP/1.1 ")[2] for file in STREAMS.rglob("*.txt"))
    seen = set(re.findall(r"^(x-context-[a-z-]+): ", answered, re.MULTILINE))
    assert openapi.HEADERS.keys() - seen == {"x-context-reason"}  # A stream that begins early has it in its events.
    assert seen < openapi.HEADERS.keys()


def test_every_option_and_request_header_is_listed() -> None:
    listed = section("Options of a request")
    assert set(re.findall(r'"context": \{"(\w+)"', listed)) == set(OPTIONS)
    assert set(re.findall(r"`(x-context-[a-z-]*[a-z])", listed)) == openapi.PARAMETERS.keys()


def test_every_status_is_listed() -> None:
    assert first_column("Statuses") == {*get_args(Status), "pending", "bypassed"}


def test_every_shape_is_listed() -> None:
    assert first_column("Shapes") == set(EVENT_SHAPES)


# The site: navigation, links and headings

DOCS = sorted((ROOT / "docs").rglob("*.md"))
SITE_PAGES = [*(ROOT / name for name in OUTSIDE), *DOCS]
NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_MARKS = re.compile(r"\[([^]]*)\]\([^)]*\)|[`*]")


def pages_in(navigation: Any) -> Iterator[str]:
    match navigation:
        case str():
            yield navigation
        case dict():
            yield from pages_in(list(navigation.values()))
        case list():
            for entry in navigation:
                yield from pages_in(entry)


@cache
def anchors(page: Path) -> set[str]:
    """What a code host makes of the headings: lower case, without marks and punctuation, with dashes for blanks."""
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.+?) *$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = _MARKS.sub(lambda match: match[1] or "", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_every_page_is_in_the_navigation_and_nothing_else_is() -> None:
    assert sorted(pages_in(NAVIGATION)) == sorted(place(name(page)) for page in SITE_PAGES)


def test_links_with_an_anchor_lead_to_a_heading() -> None:
    links = (
        (page, target, anchor)
        for page in SITE_PAGES
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", _FENCE.sub("", page.read_text()))
    )
    dead = (link for link in links if link[2] not in anchors(link[0].parent / link[1] if link[1] else link[0]))
    assert [f"{name(page)}: {target}#{anchor}" for page, target, anchor in dead] == []


def test_what_is_written_from_the_settings_is_not_stale() -> None:
    """The sample file, the reference and the table of presets."""
    for file, text in generated().items():
        assert file.read_text() == text, f"{file.relative_to(ROOT)} is stale: `make generate` writes it anew"


# Costs: the example on the page

COSTS = (ROOT / "docs" / "costs.md").read_text()


def test_the_table_of_examples_is_worked_out_from_the_list_prices() -> None:
    assert "\n".join(examples()) in COSTS


def test_the_example_is_the_one_that_is_worked_out() -> None:
    for number in (INSTRUCTIONS, SUMMARISED, SUMMARIES, TAIL, CHANGE.freed, CHANGE.rewritten, GROWTH):
        assert f"{number:,}" in COSTS
    assert f"Steno expects {CHANGE.freed // (2 * GROWTH)} requests" in COSTS
    assert f"It expects at least {LEAST_REQUESTS} requests." in COSTS
