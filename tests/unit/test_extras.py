"""The command that installs an extra names where Steno came from, and never the foreign project of its name."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import app
from app.settings import checks

ROOT = Path(app.__file__).parents[1]


def recorded(monkeypatch: pytest.MonkeyPatch, folder: Path, direct_url: str | None) -> None:
    """Let Steno be installed into a folder, by an installer that recorded this."""
    monkeypatch.setattr(app, "__file__", str(folder / "app" / "__init__.py"))
    installed: Any = SimpleNamespace(read_text=lambda _: direct_url)
    monkeypatch.setattr(checks, "distribution", lambda _: installed)


def test_in_a_checkout_it_names_the_checkout() -> None:
    assert shlex.split(checks.install_command("lab")) == ["pip", "install", f"{ROOT}[lab]"]


@pytest.mark.parametrize("path", ["/home/a/steno", "/a b/dist/steno-0.1.0-py3-none-any.whl"])
def test_elsewhere_it_names_the_path_that_the_installer_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    recorded(monkeypatch, tmp_path, json.dumps({"url": Path(path).as_uri(), "dir_info": {}}))
    assert shlex.split(checks.install_command("mcp")) == ["pip", "install", f"{path}[mcp]"]


@pytest.mark.parametrize("direct_url", [None, '{"url": "https://example.com/steno.git", "vcs_info": {}}'])
def test_without_a_recorded_path_it_says_what_to_fill_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct_url: str | None
) -> None:
    recorded(monkeypatch, tmp_path, direct_url)
    assert checks.install_command("mcp") == f"pip install '{checks.UNKNOWN_SOURCE}[mcp]'"

    def none(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(checks, "distribution", none)
    assert checks.install_command("mcp") == f"pip install '{checks.UNKNOWN_SOURCE}[mcp]'"
