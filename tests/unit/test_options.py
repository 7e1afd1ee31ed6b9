"""Options of a request: a value that cannot be obeyed is refused, and told what is allowed."""

from typing import Any

import pytest

from app.errors import InvalidRequest
from app.proxy.caller import Caller
from app.proxy.options import event_shape, read_preset, read_trigger
from app.wire.formats import FORMATS

STREAMED = FORMATS[0].read(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":true}')


def shape(*said: bytes) -> str:
    headers = [(b"x-context-events", each) for each in said]
    return event_shape(STREAMED, Caller("one", headers, FORMATS[0]), "start")


def test_a_header_names_the_shape_of_events() -> None:
    assert (shape(), shape(b"named"), shape(b"CHUNK"), shape(b"off")) == ("start", "named", "chunk", "off")


@pytest.mark.parametrize("said", [b"zzz", b""])
def test_a_shape_that_there_is_not_is_refused(said: bytes) -> None:
    with pytest.raises(InvalidRequest, match="must be one of chunk, start, named, comment, off; it is"):
        shape(said)


@pytest.mark.parametrize("name", ["", "libre", 5, False])
def test_a_preset_that_there_is_not_is_refused(name: object) -> None:
    with pytest.raises(InvalidRequest, match="Known: "):
        read_preset(name)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tokens": "5"}, "tokens must be a number"),
        ({"tokens": True}, "tokens must be a number"),
        ({"any": [{"turns": 5}, {"token_ratio": "0.5"}]}, "token_ratio must be a number"),
        ({"overflow": "true"}, "overflow must be true or false"),
        ({"overflow": 1}, "overflow must be true or false"),
    ],
)
def test_a_number_or_switch_of_a_trigger_that_is_a_text_is_refused(given: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        read_trigger(given)


@pytest.mark.parametrize(
    "given",
    [
        {"tokens": 64_000.0},
        {"token_ratio": 1, "of": "window"},
        {"any": [{"turns": 5, "tokens": None}, {"overflow": True}]},
        {},
    ],
)
def test_other_triggers_are_obeyed(given: Any) -> None:
    assert read_trigger(given) is not None
