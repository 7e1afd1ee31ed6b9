"""`examples/chat.py` at a terminal."""

from __future__ import annotations

import sys

import pytest

from examples import chat


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_a_chat_says_what_to_press_and_ends_without_a_traceback(
    end: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(_: str) -> str:
        raise end

    monkeypatch.setattr(sys, "argv", ["chat.py"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", ended)
    chat.main()
    assert capsys.readouterr().out.startswith("Press Enter")
