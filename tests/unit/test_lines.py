"""Lines and banner: what somebody at a terminal reads, and that nothing of a line can move the cursor."""

from __future__ import annotations

import re

import pytest

from app import __version__
from app.cli.logs import Line
from app.cli.serve import banner
from app.conversation.reasons import _REMEDIES, Code, because, hint_for
from app.proxy.exchange import _AWAY, _FAULT, _STATUSES
from app.settings import Settings, every_setting, load

DECIDED = {
    "event": "payload changed",
    "level": "info",
    "logger": "steno.requests",
    "timestamp": "14:03:07",
    "request_id": "req_1",
    "conversation_id": "order-4711",
    "model": "gpt-4o",
    "actions": ["summarized", "recalled"],
    "messages": {"pruned": 3},
    "reason": None,
    "tokens_before": 6447,
    "tokens_after": 1288,
    "window": 8000,
    "seconds": 1.559,
}


def rendered(colors: bool = False, **fields: object) -> str:
    return Line(colors=colors)(None, "info", {"event": "something", "level": "info", "timestamp": "14:03:07", **fields})


def test_a_decision_has_the_tokens_first_and_the_ids_last() -> None:
    assert Line(colors=False)(None, "info", dict(DECIDED)) == (
        "14:03:07 info    payload changed              tokens=6,447->1,288 of 8,000 model=gpt-4o"
        " actions=summarized,recalled\n"
        "                 messages=pruned:3 seconds=1.559 conversation_id=order-4711 request_id=req_1"
    )


def test_lines_fit_120_columns() -> None:
    ids = {"conversation_id": f"conv_{'f' * 24}", "request_id": f"req_{'f' * 24}"}
    reason = "summariser_status: 500, summariser_upstream_unreachable, put_off_for_cost"
    remedy = "Choose a faster summary.model, or raise it."
    line = Line(colors=False)(None, "info", {**DECIDED, **ids, "reason": reason, "remedy": remedy})
    assert 2 <= len(line.splitlines()) <= 5
    assert max(map(len, line.splitlines())) <= 120


def test_what_has_no_value_is_left_out_and_zero_is_a_value() -> None:
    assert rendered(reason=None, actions=[], messages={}, times=0).endswith("something                    times=0")


def test_colors_change_nothing_but_the_color() -> None:
    colored = Line(colors=True)(None, "info", dict(DECIDED))
    assert re.sub(r"\x1b\[\d+m", "", colored) == Line(colors=False)(None, "info", dict(DECIDED))
    assert "\x1b[32m" in colored


@pytest.mark.parametrize("hostile", ["a\nwarning provider failed", "\x1b[2J", "two words", 'a "quote"', "\u202e"])
def test_a_value_cannot_pass_for_another_line_or_move_the_cursor(hostile: str) -> None:
    line = rendered(path=hostile)
    assert "\n" not in line
    assert line.isprintable()
    assert 'path="' in line


def test_the_places_of_an_error_follow_its_line() -> None:
    assert rendered(exception="  File a\nbuiltins.KeyError").splitlines()[1:] == ["  File a", "builtins.KeyError"]


def test_the_banner_has_an_address_to_paste_for_each_format_and_every_upstream() -> None:
    settings = load(upstreams={"local": {"base_url": "http://127.0.0.1:11434/v1"}})
    text = banner(settings, "http://127.0.0.1:8080", "sqlite:///steno.db", "2 workers, uvloop, HttpToolsProtocol")
    for shown in (
        f"Steno {__version__}",
        "OPENAI_BASE_URL=http://127.0.0.1:8080/v1",
        "ANTHROPIC_BASE_URL=http://127.0.0.1:8080\n",
        "default: https://api.openai.com/v1 (",
        "local: http://127.0.0.1:11434/v1 (",
        "sqlite:///steno.db",
        "2 workers, uvloop",
        "tiktoken",
    ):
        assert shown in text
    assert banner(settings, "", "", "", ("o200k_base",)).count("no table for o200k_base") == 1
    assert "http://127.0.0.1:8080/ui\n" in text
    assert "Password" not in text
    made = banner(settings, "", "", "", password="sesame", admin="http://127.0.0.1:9090")
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
