"""Lines and banner: what somebody at a terminal reads, and that nothing of a line can move the cursor."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator

import pytest
import structlog

from app import __version__
from app.cli.logs import configure_logging
from app.cli.serve import banner
from app.conversation.reasons import _REMEDIES, Code, because, hint_for
from app.proxy.exchange import _AWAY, _FAULT, _STATUSES
from app.settings import Settings, every_setting, load


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What `serve` writes on a terminal without colours."""
    root = logging.getLogger()
    handlers, level, written = root.handlers, root.level, io.StringIO()
    configure_logging("info", "text", written)
    yield written
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_line_has_its_event_first_and_no_empty_fields(written: io.StringIO) -> None:
    structlog.get_logger("steno.test").info("payload changed", model="gpt-4o", reason=None, actions=[], times=0)
    assert re.fullmatch(r"[\d:]{8} \[info +\] payload changed +model='gpt-4o' times=0\n", written.getvalue())


@pytest.mark.parametrize("hostile", ["a\nwarning provider failed", "\x1b[2J", "two words", 'a "quote"', "\u202e"])
def test_a_value_cannot_pass_for_another_line_or_move_the_cursor(written: io.StringIO, hostile: str) -> None:
    structlog.get_logger("steno.test").info("something", path=hostile)
    [line] = written.getvalue().removesuffix("\n").split("\n")
    assert line.isprintable()
    assert f"path={hostile!r}" in line


def test_the_banner_has_an_address_to_paste_for_each_format_and_every_upstream() -> None:
    settings = load(upstreams={"local": {"base_url": "http://127.0.0.1:11434/v1"}})
    text = banner(settings, "http://127.0.0.1:8080", "sqlite:///steno.db")
    for shown in (
        f"Steno {__version__}",
        "OPENAI_BASE_URL=http://127.0.0.1:8080/v1",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:8080\n",
        "Upstream default  https://api.openai.com/v1\n",
        "Upstream local    http://127.0.0.1:11434/v1\n",
        "sqlite:///steno.db",
    ):
        assert shown in text
    assert "http://127.0.0.1:8080/ui\n" in text
    assert "Password" not in text
    made = banner(settings, "", "", password="sesame", admin="http://127.0.0.1:9090")
    assert "http://127.0.0.1:9090/ui\n" in made
    assert "Password          sesame (" in made


def test_remedies_name_only_settings_that_exist() -> None:
    known = {key for key, _ in every_setting()} | {"summary.upstream"}
    sections = "|".join(Settings.model_fields)
    texts = [*_REMEDIES.values(), _FAULT, *_STATUSES.values(), *_AWAY.values()]
    named = re.findall(rf"\b((?:{sections})(?:\.[a-z_]+)+)", " ".join(texts))
    assert named
    assert set(named) <= known


def test_the_remedy_is_for_the_first_reason_about_which_something_can_be_done() -> None:
    why = (*because(Code.SUMMARISER_STATUS, "401"), *because(Code.SUMMARY_FAILED_LATELY))
    assert "key" in str(hint_for(why))
    assert hint_for(because(Code.SUMMARISER_STATUS, "500")) != hint_for(because(Code.SUMMARISER_STATUS, "400"))
    assert hint_for(because(Code.NOTHING_TO_SUMMARISE)) is None
    assert hint_for(()) is None
