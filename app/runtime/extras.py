"""Extras: the optional packages of `pyproject.toml`, and the command that installs them.

The command names the checkout or wheel that Steno came from: `steno` on the Python Package Index is another project.
"""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import app

UNKNOWN = "PATH-OF-CHECKOUT-OR-WHEEL"


def install_command(extra: str) -> str:
    """The command with pip that installs Steno again, with an extra."""
    return f"pip install {shlex.quote(f'{_source() or UNKNOWN}[{extra}]')}"


def _source() -> str | None:
    """Path of the checkout or wheel; None if the installer did not record one (PEP 610)."""
    checkout = Path(app.__file__).parents[1]
    if (checkout / "pyproject.toml").is_file():
        return str(checkout)
    try:
        recorded = distribution("steno").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    url = urlsplit(json.loads(recorded)["url"] if recorded else "")
    return url2pathname(url.path) if url.scheme == "file" else None
