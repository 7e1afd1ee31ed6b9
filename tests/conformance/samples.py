"""What a format brings for the suite to try it with: bodies, answers and refusals, as its clients and providers write
them, and what has to be found in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.conversation.messages import Kind
from app.formats.spec import Ending, SummaryAnswer
from app.formats.summaries import SummaryDialect
from app.tokens.costs import Tokens


@dataclass(frozen=True, slots=True)
class Samples:
    """Bodies are bytes as they come, with spaces, numbers and members that no decoder gives back as they were."""

    request: bytes
    """Asks for a stream, and does not say whether it is to tell its usage. Declares a tool. Instructions; a turn with
    two parallel calls, their results and a text; a turn of a question and an answer; a last question."""
    with_own_members: bytes
    """The same request, byte for byte, with all of Steno's own members in it."""
    messages: tuple[bytes, ...]
    """The raw messages in it, apart from instructions that stand in a member of their own."""
    unreadable: tuple[bytes, ...]
    """Bodies without a history, or without a model."""
    model: str
    kinds: tuple[Kind, ...]
    """Of the request's messages, the instructions first."""
    cuts: tuple[int, ...]
    """Where it may be cut, counted after the instructions."""
    result: int
    """One of its results, counted likewise; it has at least a hundred characters of text."""
    others: tuple[tuple[bytes, Kind], ...]
    """Raw messages of the kinds, and of the roles, that the request does not hold."""
    alike: tuple[tuple[bytes, bytes], ...]
    """Raw messages of one meaning, and so of one digest."""
    unlike: tuple[tuple[bytes, bytes], ...]
    shown: tuple[bytes, ...]
    """Messages with a text, a picture and a text, as a user sends them and, where a format has that, as tools do."""
    text_of: Callable[[bytes], str]
    """The text that a raw message holds, read by somebody else than the format."""

    stream: tuple[bytes, ...]
    """The frames of an answer, from the first to the one that ends it. It tells its usage where it is asked to."""
    unasked: tuple[bytes, ...]
    """The same, where its usage is not to be passed on."""
    ends_at: int
    """The first frame by which the answer is complete."""
    stream_usage: Tokens
    whole: bytes
    """An answer in one piece."""
    whole_usage: Tokens
    full_stream: tuple[bytes, ...]
    """An answer that the model's window cut off."""
    full_whole: bytes
    check_stream: Callable[[Sequence[bytes]], None]
    """Asserts what this format's strictest client wants of a stream's frames."""
    told_in: Callable[[bytes], Mapping[str, object]]
    """The members at the top level of a frame, or of an answer in one piece."""

    overflow: tuple[int, bytes]
    """Status and body of a refusal because of the prompt's size."""
    overflow_frame: bytes
    """The same as the first frame of a stream."""
    refusal: tuple[int, bytes, str]
    """Status, body and message of any other refusal."""

    answers: tuple[tuple[bytes, SummaryAnswer], ...]
    """Answers to summary calls, streamed and whole, of all endings."""
    no_answers: tuple[bytes, ...]
    """What is no answer, or only a part of one."""
    lessons: tuple[tuple[str, bytes, str, str], ...]
    """What refusals teach: the model that was asked, the refusal, a member that is left out from then on, and the one
    that is sent instead, or nothing."""
    nothing_taught: tuple[bytes, ...]

    reasoner: str
    """A model that reasons before it answers."""
    pins: tuple[int, ...]
    """What the request with all of Steno's own members pins."""
    tells_usage: bool
    """A stream tells its usage, asked or not."""


def loaded(name: str, **how: Any) -> Samples:
    """The samples in `<name>.yaml`, with the functions that read and check them."""
    told: dict[str, Any] = yaml.safe_load(Path(__file__).with_name(f"{name}.yaml").read_text("ascii"))
    messages = _raw(told["messages"])
    own = told["own"].encode()
    parts = {"tools": told["tools"].encode(), "messages": b" ,\n ".join(messages)}
    parts["instructions"] = told.get("instructions", "").encode()
    stream = _frames(told["stream"])
    plain: dict[str, Any] = {key: told[key] for key in ("model", "result", "ends_at", "tells_usage")}
    plain |= {key: told[key].encode() for key in ("whole", "full_whole", "overflow_frame")}
    plain |= {key: _raw(told[key]) for key in ("unreadable", "shown", "no_answers", "nothing_taught")}
    return Samples(
        request=_filled(told["body"], own=b"", **parts),
        with_own_members=_filled(told["body"], own=own, **parts),
        messages=messages,
        kinds=tuple(Kind[kind] for kind in told["kinds"]),
        cuts=tuple(told["cuts"]),
        others=tuple((raw.encode(), Kind[kind]) for kind, raw in told["others"]),
        alike=tuple((one.encode(), other.encode()) for one, other in told["alike"]),
        unlike=tuple((one.encode(), other.encode()) for one, other in told["unlike"]),
        stream=stream,
        unasked=_frames(told["unasked"]) if "unasked" in told else stream,
        stream_usage=Tokens(**told["stream_usage"]),
        whole_usage=Tokens(**told["whole_usage"]),
        full_stream=_frames(told["full_stream"]),
        overflow=(told["overflow"][0], told["overflow"][1].encode()),
        refusal=(told["refusal"][0], told["refusal"][1].encode(), told["refusal"][2]),
        answers=tuple((each["of"].encode(), _answer(each)) for each in told["answers"]),
        lessons=tuple((model, raw.encode(), refused, instead) for model, raw, refused, instead in told["lessons"]),
        pins=tuple(told["pins"]),
        reasoner=told.get("reasoner", "o3"),
        **plain,
        **how,
    )


def _raw(texts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)


def _filled(body: str, **parts: bytes) -> bytes:
    return re.sub(rb"<([a-z]+)>", lambda mark: parts[mark[1].decode()], body.encode())


def _frames(text: str) -> tuple[bytes, ...]:
    return tuple(frame + b"\n\n" for frame in text.encode().split(b"\n\n")[:-1])


def _answer(said: Mapping[str, Any]) -> SummaryAnswer:
    ending, usage = Ending[said.get("ending", "FINISHED")], Tokens(**said.get("usage", {}))
    return SummaryAnswer(said["text"], ending, said.get("word", ""), usage)


def samples_of(name: str) -> Samples:
    try:
        found: Samples = import_module(f"tests.conformance.{name}").SAMPLES
    except ModuleNotFoundError:
        pytest.fail(f"The format {name} brings no samples: write tests/conformance/{name}.py with its SAMPLES.")
    return found


def read_answer(dialect: SummaryDialect, body: bytes) -> SummaryAnswer | None:
    """The answer to a summary call, out of all of its bytes; None if they are no answer, or a part of one."""
    reader = dialect.reader()
    reader.feed(body)
    reader.end()
    return reader.answer
