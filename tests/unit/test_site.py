"""The documentation as a site: every page is in the navigation, and every link leads to a page and a heading of it.

`make docs` builds the site itself, and `make lint` runs it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from scripts.build_docs import OUTSIDE, place
from scripts.generate_settings import generated

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in OUTSIDE), *DOCS]
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
    assert sorted(pages_in(NAVIGATION)) == sorted(place(name(page)) for page in PAGES)


def test_links_with_an_anchor_lead_to_a_heading() -> None:
    links = (
        (page, target, anchor)
        for page in PAGES
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)]+)\)", _FENCE.sub("", page.read_text()))
    )
    dead = (link for link in links if link[2] not in anchors(link[0].parent / link[1] if link[1] else link[0]))
    assert [f"{name(page)}: {target}#{anchor}" for page, target, anchor in dead] == []


def test_what_is_written_from_the_settings_is_not_stale() -> None:
    """The sample file, the reference and the table of presets."""
    for file, text in generated().items():
        assert file.read_text() == text, f"{file.relative_to(ROOT)} is stale: `make generate` writes it anew"
