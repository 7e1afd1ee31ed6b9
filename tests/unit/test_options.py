"""Options of a request: a value that cannot be obeyed is refused, and told what is allowed."""

import pytest

from app.errors import InvalidRequest
from app.formats.registry import FORMATS
from app.proxy.caller import Caller
from app.proxy.request import event_shape, read_preset

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
