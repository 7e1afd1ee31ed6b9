"""Build the documentation into build/site: python scripts/build_docs.py

The pages are written for a code host: README.md is the front page, and links lead to files of the repository. Here they
are laid out as a site in build/pages, with their links adapted, and built by zensical, which fails on a dead link.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"

# Pages outside of docs/, and where each stands on the site. Not SECURITY.md as security.md: there is one already.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "vulnerabilities.md",
    "CHANGELOG.md": "changelog.md",
}

_LINK = re.compile(r"(\]\()([^)\s#:]+)([)#])")
_LOADED = re.compile(
    r"""(?:<link[^>]*href|\bsrc(?:set)?)=["']?(?:https?:)?//[^\s"'>]+|(?:url\(|@import )["']?(?:https?:)?//[^)"']+"""
)
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def place(file: str) -> str:
    """Where a file of the repository stands on the site."""
    return OUTSIDE.get(file) or file.removeprefix("docs/")


def adapt(page: str, text: str) -> str:
    """The text of a page with its links as the site has them; what they lead to outside of docs/ is copied."""
    here = PurePosixPath(place(page)).parent

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(PurePosixPath(page).parent / match[2])
        if not (ROOT / target).is_file():
            sys.exit(f"{page} links to {match[2]}, which is no file")
        if target not in OUTSIDE and not target.startswith("docs/"):
            copy(target)
        return f"{match[1]}{os.path.relpath(place(target), here)}{match[3]}"

    # What stands in a fenced block is code.
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in _FENCE.split(text))


def copy(file: str) -> None:
    target = PAGES / place(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / file, target)


def main() -> int:
    shutil.rmtree(PAGES, ignore_errors=True)
    files = [*OUTSIDE, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file())]
    for file in files:
        copy(file)
        if file.endswith(".md"):
            (PAGES / place(file)).write_text(adapt(file, (ROOT / file).read_text()))
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    subprocess.run(command, cwd=ROOT, check=True)
    if foreign := sorted(what_comes_from_elsewhere()):
        sys.exit("the site loads from other hosts:\n" + "\n".join(foreign))
    return 0


def what_comes_from_elsewhere() -> Iterator[str]:
    """What the built pages and style sheets would load from another host. Links to follow are none of it."""
    for file in (ROOT / "build" / "site").rglob("*"):
        if file.suffix in {".html", ".css"}:
            for match in _LOADED.finditer(file.read_text()):
                yield f"{file.relative_to(ROOT)}: {match[0]}"


if __name__ == "__main__":
    sys.exit(main())
