"""Write the index of docs/settings.md anew, from its headings: python scripts/index_settings.py"""

from __future__ import annotations

import re
from pathlib import Path

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"

_INDEX = re.compile(r"(?<=<!-- index: begin -->\n\n).*?(?=\n\n<!-- index: end -->)", re.DOTALL)


def with_index(reference: str) -> str:
    """The page with a line for each section, in its own order, and in it a link to each setting."""
    lines: list[str] = []
    for marks, key in re.findall(r"^(##+) ([a-z_.]+)$", reference, re.MULTILINE):
        link = f"(#{key.replace('.', '')})"
        if marks == "##":
            lines.append(f"- [{key}]{link}")
        else:
            lines[-1] += f"{',' if ': [' in lines[-1] else ':'} [{key.partition('.')[2]}]{link}"
    index = "\n".join(lines)
    return _INDEX.sub(lambda _: index, reference)


if __name__ == "__main__":
    REFERENCE.write_text(with_index(REFERENCE.read_text()))
