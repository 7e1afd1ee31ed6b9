"""What every wire format has to keep, tried with the samples that it brings."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from app.compaction.prompts import chunk_text, summary_request
from app.compaction.verify import problems, repair
from app.compaction.view import (
    Altered,
    Carried,
    Conversation,
    Note,
    Part,
    Pinned,
    Pruned,
    Summary,
    Verbatim,
    View,
    whole,
)
from app.conversation.messages import Kind, Message, tool_name
from app.errors import UpstreamDisconnected, UpstreamUnreadable
from app.formats.answers import ContextMembers
from app.formats.compaction_events import EVENT_SHAPES, EventShape
from app.formats.format import WireFormat
from app.formats.paths import FORMATS
from app.formats.raw_json import LONGEST_KEY, KeyTooLong, TooManyValues, Unreadable
from app.formats.reader import MessageReader
from app.formats.refusals import decoded_body, read_overflow
from app.formats.requests import BodyBounds, TooManyMessages
from app.formats.spec import SummaryAnswer
from app.formats.sse import FrameSplitter, frames_in
from app.formats.summaries import Manners
from app.settings.compaction import SAID_BY_STENO
from app.tokens.costs import MOST_TOKENS, UNBILLED
from app.tokens.estimate import Costs
from tests.conformance.samples import Samples, read_answer, samples_of
from tests.unit.conversations import IDENTITY, chunk, count

STATUS = b'"context_status":"summarized"'
TOLD = ContextMembers(STATUS, STATUS + b',"context":{"status":"summarized","tokens":{}}')
SHAPES = [shape for shape in EVENT_SHAPES if shape != "off"]
ERROR = UpstreamDisconnected("The provider's stream ended.")


@pytest.fixture(params=FORMATS, ids=[spoken.name for spoken in FORMATS])
def spoken(request: pytest.FixtureRequest) -> WireFormat:
    found: WireFormat = request.param
    return found


@pytest.fixture
def samples(spoken: WireFormat) -> Samples:
    return samples_of(spoken.name)


def test_a_format_without_samples_fails_with_a_sentence() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"The format converse brings no samples: write .*/converse\.py"):
        samples_of("converse")


def test_formats_are_told_apart_by_name_and_path() -> None:
    assert len({spoken.name for spoken in FORMATS}) == len({spoken.path for spoken in FORMATS}) == len(FORMATS)


# Reading


def read_messages(spoken: WireFormat, raw_messages: Sequence[bytes], ignore: Sequence[str] = ()) -> tuple[Message, ...]:
    return MessageReader(IDENTITY, spoken.message, ignore).read(raw_messages)


def talk_of(spoken: WireFormat, body: bytes) -> Conversation:
    read = read_messages(spoken, spoken.read(body).raw_messages)
    return Conversation(read, IDENTITY, "t", lambda: Costs([count(m.text) for m in read], 0), None)


def test_a_request_is_read(spoken: WireFormat, samples: Samples) -> None:
    request = spoken.read(samples.request)
    assert (request.model, request.answer.stream, request.answer.choices) == (samples.model, True, 1)
    assert request.has_tools
    assert not request.forbids_tools
    assert request.is_typical
    assert request.declarations().tools
    assert request.answer.output is None
    assert request.answer.wants_usage is samples.tells_usage
    assert request.answer.says_whether_usage is samples.tells_usage
    assert request.body == samples.request
    assert spoken.model_in(samples.request) == samples.model
    assert spoken.model_in(b"<p>") == ""


def test_what_is_no_request_is_left_to_the_provider(spoken: WireFormat, samples: Samples) -> None:
    for body in samples.unreadable:
        with pytest.raises(Unreadable):
            spoken.read(body)


def test_no_message_is_read_with_a_key_that_is_too_long(spoken: WireFormat, samples: Samples) -> None:
    """At any depth: such a body goes on as it came."""
    tried = 0
    raw_messages = spoken.read(samples.request).raw_messages
    for value in (json.loads(raw) for raw in raw_messages if raw[:1] in (b"{", b"[")):
        held = [value]
        for each in held:
            held += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
            if isinstance(each, dict):
                each["k" * (LONGEST_KEY + 1)] = 1
                with pytest.raises(KeyTooLong):
                    read_messages(spoken, [json.dumps(value).encode()])
                each.popitem()
                tried += 1
    assert tried > 10


def test_a_body_is_read_within_its_bounds_only(spoken: WireFormat, samples: Samples) -> None:
    with pytest.raises(TooManyValues, match="more than 10 values"):
        spoken.read(samples.request, BodyBounds(values=10))
    with pytest.raises(TooManyMessages, match=r"at most \d+ are read"):
        spoken.read(samples.request, BodyBounds(messages=len(samples.kinds) - 1))


def test_stenos_own_members_are_read(spoken: WireFormat, samples: Samples) -> None:
    request = spoken.read(samples.with_own_members)
    assert (request.wishes.focus, request.wishes.pins) == ("dates", samples.pins)
    assert request.wishes.options["pin"] == [1]
    assert [name for name, _ in request.names] == ["conversation_id"]
    asking = request.asking(threshold=7, focus="names")
    assert (asking.wishes.threshold, asking.wishes.focus, asking.body) == (7, "names", request.body)
    assert spoken.read(samples.request).wishes.threshold is None


def test_messages_are_of_their_kinds_and_keep_their_bytes(spoken: WireFormat, samples: Samples) -> None:
    request = spoken.read(samples.request)
    messages = read_messages(spoken, request.raw_messages)
    assert tuple(message.kind for message in messages) == samples.kinds
    assert tuple(message.raw for message in messages) == request.raw_messages
    assert all(raw in samples.request for raw in request.raw_messages)
    assert all(message.text == samples.text_of(message.raw) for message in messages if not message.calls)


def test_each_message_stands_for_itself_as_json(spoken: WireFormat, samples: Samples) -> None:
    raw_messages = spoken.read(samples.request).raw_messages
    alone = [spoken.alone(raw) for raw in raw_messages]
    assert all(json.loads(each) for each in alone)
    assert all(raw in each for raw, each in zip(raw_messages, alone, strict=True))
    assert tuple(map(spoken.raw_of, alone)) == raw_messages


def test_a_request_made_of_messages_that_stand_for_themselves_has_the_same_history(
    spoken: WireFormat, samples: Samples
) -> None:
    request = spoken.read(samples.request)
    alone = [spoken.alone(raw) for raw in request.raw_messages]
    anew = spoken.read(spoken.assembled('a "model"', alone))
    assert (anew.model, anew.raw_messages, anew.has_tools) == ('a "model"', request.raw_messages, False)
    only_said = spoken.read(spoken.assembled("m", alone[1:]))
    assert only_said.raw_messages == request.raw_messages[1:]
    assert spoken.read(spoken.assembled("m", [])).raw_messages == ()


def test_messages_of_other_roles_have_their_kinds(spoken: WireFormat, samples: Samples) -> None:
    messages = read_messages(spoken, [raw for raw, _ in samples.others])
    assert [message.kind for message in messages] == [kind for _, kind in samples.others]
    assert all(message.text == samples.text_of(message.raw) for message in messages)
    known = {*samples.kinds, *(message.kind for message in messages)}
    assert known == set(Kind)


def test_digests_go_by_what_a_message_means(spoken: WireFormat, samples: Samples) -> None:
    for same, pairs in ((True, samples.alike), (False, samples.unlike)):
        for pair in pairs:
            one, other = read_messages(spoken, pair)
            assert (one.digest == other.digest) is same, pair


def test_volatile_text_is_no_part_of_what_a_message_means(spoken: WireFormat, samples: Samples) -> None:
    request = spoken.read(samples.request)
    question = samples.text_of(request.raw_messages[-1])
    changed = request.raw_messages[-1].replace(question.encode(), question.encode() + b" It is 12:20.")
    plain = read_messages(spoken, [request.raw_messages[-1]], [r" It is [\d:]+\."])
    assert read_messages(spoken, [changed], [r" It is [\d:]+\."])[0].digest == plain[0].digest
    assert read_messages(spoken, [changed])[0].digest != plain[0].digest


# Transparency


def test_an_untouched_request_is_the_clients_bytes(spoken: WireFormat, samples: Samples) -> None:
    assert spoken.read(samples.request).untouched == samples.request
    assert spoken.read(samples.with_own_members).untouched == samples.request


def test_a_view_that_changes_nothing_gives_back_the_very_slices(spoken: WireFormat, samples: Samples) -> None:
    request, talk = spoken.read(samples.request), talk_of(spoken, samples.request)
    assert spoken.render(talk, whole(talk)) == list(request.raw_messages)
    assert spoken.render(talk, whole(talk), alternate=True) == list(request.raw_messages)


@pytest.mark.parametrize("own", [False, True])
def test_beside_the_history_a_payload_is_the_clients_bytes(spoken: WireFormat, samples: Samples, *, own: bool) -> None:
    request = spoken.read(samples.with_own_members if own else samples.request)
    payload = request.with_messages(request.raw_messages)
    history, theirs = spoken.messages_in(payload), spoken.messages_in(samples.request)
    assert payload.replace(history, theirs) == samples.request
    assert json.loads(payload) == json.loads(samples.request)


def test_an_answer_that_is_told_nothing_passes_byte_for_byte(spoken: WireFormat, samples: Samples) -> None:
    editor = spoken.editor()
    assert [editor.edit(frame) for frame in samples.stream] == list(samples.stream)
    assert spoken.editor().whole(samples.whole) == samples.whole


def test_frames_that_pass_unseen_are_those_that_pass_unchanged(spoken: WireFormat, samples: Samples) -> None:
    told, unseen = (spoken.editor(TOLD, spoken.read(samples.request)) for _ in range(2))
    for number, frame in enumerate(samples.stream):
        ahead = b"".join(samples.stream[number:])
        quiet, edited = unseen.quiet(ahead, 0), told.edit(frame)
        assert quiet == 0 or edited == frame
        assert quiet in {len(b"".join(samples.stream[number:stop])) for stop in range(number, len(samples.stream) + 1)}
        unseen.edit(frame)


def test_what_is_no_answer_passes_byte_for_byte(spoken: WireFormat, samples: Samples) -> None:
    for body in (b"", b"<p>", b"[]", b"{", samples.whole[:-9]):
        editor = spoken.editor(TOLD, spoken.read(samples.request))
        assert editor.whole(body) == body
        assert not editor.complete
        assert editor.usage is None
    for frame in (b": comment\n\n", b"data: no JSON\n\n", b"id: 7\n\n", b"data: {}\n\n"[:-2]):
        assert spoken.editor().edit(frame) == frame


# Splices


def summarised(talk: Conversation, samples: Samples) -> tuple[Summary, int]:
    """A summary of everything before the last unit of the first turn's answers, and where it ends."""
    stop = samples.cuts[-3]
    return Summary(chunk(talk, 0, stop)), stop


def payload_of(spoken: WireFormat, talk: Conversation, *parts: Part) -> list[bytes]:
    return spoken.render(talk, View(parts, 1))


def test_a_summary_stands_in_a_user_message_and_the_rest_is_byte_for_byte(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    summary, stop = summarised(talk, samples)
    rendered = payload_of(spoken, talk, summary, Verbatim(stop, len(talk.transcript)))
    before, after = 1, 2
    raw = spoken.read(samples.request).raw_messages
    assert rendered[:before] == list(raw[:before])
    assert rendered[after:] == list(raw[before + stop :])
    [note] = read_messages(spoken, rendered[before:after])
    assert note.kind is Kind.USER
    assert note.text == chunk_text(summary.chunk)


def test_notes_pinned_copies_and_carried_messages_stand_where_the_view_says(
    spoken: WireFormat, samples: Samples
) -> None:
    talk = talk_of(spoken, samples.request)
    raw = spoken.read(samples.request).raw_messages[1:]
    summary, stop = summarised(talk, samples)
    pinned = Pinned(samples.cuts[1], samples.cuts[2])
    parts = (summary, Carried(0), pinned, Note("stub", "Mind the dates.", 3), Verbatim(stop, len(raw)))
    rendered = payload_of(spoken, talk, *parts)[1:]
    copies = raw[pinned.start : pinned.stop]
    assert rendered[1 : 2 + len(copies)] == [raw[0], *copies]
    assert samples.text_of(rendered[2 + len(copies)]) == "Mind the dates."
    assert rendered[3 + len(copies) :] == list(raw[stop:])


def test_a_pruned_unit_leaves_nothing(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    start, stop = samples.cuts[1], samples.cuts[2]
    rendered = payload_of(spoken, talk, Verbatim(0, start), Pruned(start, stop), Verbatim(stop, len(talk.transcript)))
    raw = spoken.read(samples.request).raw_messages
    left = 1
    assert rendered == [*raw[: left + start], *raw[left + stop :]]


def test_a_mask_takes_text_away_and_nothing_else(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    masked = talk.transcript.messages[samples.result]
    texts = tuple(f"cut {number}" for number in range(len(masked.texts)))
    [left] = read_messages(spoken, payload_of(spoken, talk, Altered(samples.result, texts, 1, "masked"))[1:])
    assert left.texts == texts
    assert replace(left, texts=masked.texts, raw=masked.raw, digest=masked.digest, callers=masked.callers) == masked
    same = payload_of(spoken, talk, Altered(samples.result, masked.texts, 1, "masked"))[-1]
    assert same == masked.raw


def test_words_take_the_place_of_what_is_shown_and_nothing_else_changes(spoken: WireFormat, samples: Samples) -> None:
    for raw in samples.shown:
        shown = read_messages(spoken, [raw])
        talk = Conversation(shown, IDENTITY, "t", lambda: Costs([1], 0), None)
        [message] = talk.transcript.messages
        assert (message.texts, len(message.media)) == (("See:", "What is it?"), 1)
        [left] = payload_of(spoken, talk, Altered(0, message.texts, 1, "masked", media=("[a picture]",)))
        [read] = read_messages(spoken, [left])
        assert (read.texts, read.media, read.role) == (("See:", "[a picture]", "What is it?"), (), message.role)
        assert (b'"x_own": 1.50' in left, b"ephemeral" in left) == (b'"x_own": 1.50' in raw, b"ephemeral" in raw)
        assert payload_of(spoken, talk, Altered(0, message.texts, 1, "masked")) == [raw]


def test_calls_are_cut_and_taken_out_by_their_places(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    index, caller = max(enumerate(talk.transcript.messages), key=lambda place: len(place[1].calls))
    last = len(caller.calls) - 1
    kept = Altered(index, caller.texts, 1, "repaired", ((last, '{"_shortened":"x"}'),))
    left = read_messages(spoken, payload_of(spoken, talk, kept))[-1]
    # It is no longer the one that its provider keeps: it goes without the id by which that would know it.
    assert left.calls == (replace(caller.calls[last], arguments='{"_shortened":"x"}', kept=False),)
    none = Altered(index, caller.texts, 1, "repaired", ())
    nothing = read_messages(spoken, payload_of(spoken, talk, none)[1:])
    assert not any(message.calls for message in nothing)


def test_no_two_user_messages_are_made_neighbours_where_that_is_refused(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    stop = samples.cuts[-1]  # The last question.
    parts = (Summary(chunk(talk, 0, stop)), Note("stub", "Left out.", 2), Verbatim(stop, len(talk.transcript)))
    apart = read_messages(spoken, payload_of(spoken, talk, *parts))
    joined = read_messages(spoken, spoken.render(talk, View(parts, 1), alternate=True))
    assert [m.kind for m in apart[1:]] == [Kind.USER] * 3
    assert [m.kind for m in joined[1:]] == [Kind.USER]
    assert joined[-1].texts == tuple(text for message in apart[1:] for text in message.texts)


def test_a_changed_payload_is_a_request_again(spoken: WireFormat, samples: Samples) -> None:
    request, talk = spoken.read(samples.with_own_members), talk_of(spoken, samples.request)
    summary, stop = summarised(talk, samples)
    rendered = payload_of(spoken, talk, summary, Verbatim(stop, len(talk.transcript)))
    for ask_usage in (False, True):
        again = spoken.read(request.with_messages(rendered, ask_usage))
        assert list(again.raw_messages) == rendered
        assert again.model == samples.model
        assert again.wishes.options == {}
        assert again.names == ()
        assert again.answer.wants_usage is (ask_usage or samples.tells_usage)


# Pairs


def test_units_hold_calls_together_with_their_results(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    transcript = talk.transcript
    assert len(talk.instructions) == 1
    assert transcript.cuts == samples.cuts
    assert all(transcript.is_answered(*unit) for unit in pairwise((*transcript.cuts, len(transcript))))
    assert transcript.messages[samples.result].kind is Kind.RESULT
    assert tool_name(transcript.messages, samples.result)


def test_a_history_in_order_needs_no_repair_and_has_no_problems(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    assert repair(talk, whole(talk), lambda _: 1) == whole(talk)
    assert problems(talk, whole(talk), MOST_TOKENS) == []


def test_a_result_without_its_call_is_found(spoken: WireFormat, samples: Samples) -> None:
    talk = talk_of(spoken, samples.request)
    split = View((Pruned(0, samples.result), Verbatim(samples.result, len(talk.transcript))), 1)
    assert "tool_pair_split" in problems(talk, split, MOST_TOKENS)


# Answers


def frames_of(editor: Any, frames: Iterable[bytes]) -> list[bytes]:
    return [edited for frame in frames if (edited := editor.edit(frame))]


def test_a_stream_tells_its_usage_and_its_end(spoken: WireFormat, samples: Samples) -> None:
    editor = spoken.editor(TOLD, spoken.read(samples.request))
    for number, frame in enumerate(samples.stream):
        assert editor.complete is (number > samples.ends_at)
        editor.edit(frame)
    assert editor.complete
    assert editor.begun
    assert not editor.failed
    assert not editor.window_full
    assert editor.has_content
    assert editor.usage is not None
    assert editor.usage.tokens == samples.stream_usage
    assert editor.usage.prompt == samples.stream_usage.prompt


def test_a_whole_answer_tells_its_usage(spoken: WireFormat, samples: Samples) -> None:
    editor = spoken.editor(TOLD, spoken.read(samples.request))
    edited = editor.whole(samples.whole)
    assert editor.complete
    assert editor.usage is not None
    assert editor.usage.tokens == samples.whole_usage
    assert editor.has_content
    assert json.loads(edited) == {**json.loads(samples.whole), **json.loads(b"{%b}" % TOLD.report)}
    assert edited.replace(b"," + TOLD.report, b"") == samples.whole


def test_a_stream_is_told_the_status_first_and_everything_at_its_end(spoken: WireFormat, samples: Samples) -> None:
    frames = frames_of(spoken.editor(TOLD, spoken.read(samples.request)), samples.stream)
    told = [samples.told_in(frame) for frame in frames]
    said = [members for members in told if members]
    assert said[0]["context_status"] == "summarized"
    [ended] = [members for members in said if "context" in members]
    assert ended["context_status"] == "summarized"
    plain = [frame.replace(b"," + TOLD.report, b"").replace(b"," + STATUS, b"") for frame in frames]
    assert plain == list(samples.stream)
    samples.check_stream(frames)


def test_a_stream_that_is_cut_anywhere_keeps_its_bytes(spoken: WireFormat, samples: Samples) -> None:
    """Whatever the pieces it comes in: untold to the byte, and told with nothing but our members."""
    for sent in (b"".join(samples.stream), b"".join(samples.stream).replace(b"\n", b"\r\n")):
        whole = b"".join(frames_of(spoken.editor(TOLD), frames_in(sent)))
        assert whole.replace(b"," + TOLD.report, b"").replace(b"," + STATUS, b"") == sent
        for cut in range(len(sent)):
            splitters = FrameSplitter(), FrameSplitter()
            for splitter, told, expected in zip(splitters, (ContextMembers(), TOLD), (sent, whole), strict=True):
                frames = [*splitter.feed(sent[:cut]), *splitter.feed(sent[cut:]), splitter.flush()]
                assert b"".join(frames_of(spoken.editor(told), frames)) == expected


def test_a_status_of_another_steno_is_replaced(spoken: WireFormat, samples: Samples) -> None:
    once = spoken.editor(ContextMembers(STATUS, STATUS + b',"context":{"status":"full"}')).whole(samples.whole)
    assert spoken.editor(TOLD).whole(once) == spoken.editor(TOLD).whole(samples.whole)


def test_a_usage_that_only_steno_asked_for_is_read_and_not_passed_on(spoken: WireFormat, samples: Samples) -> None:
    editor = spoken.editor(request=spoken.read(samples.request), hides_usage=True)
    frames = frames_of(editor, samples.stream)
    assert frames == list(samples.unasked)
    assert editor.usage is not None
    assert editor.usage.tokens == samples.stream_usage
    assert read_answer(spoken.summaries, b"".join(frames)) is not None


def test_a_stream_that_was_cut_is_known_as_cut(spoken: WireFormat, samples: Samples) -> None:
    for stop in range(samples.ends_at + 1):
        editor = spoken.editor(TOLD, spoken.read(samples.request))
        frames_of(editor, (*samples.stream[:stop], samples.stream[stop][:-4]))
        assert not editor.complete


def test_an_answer_that_the_window_cut_off_is_known(spoken: WireFormat, samples: Samples) -> None:
    editor = spoken.editor()
    frames_of(editor, samples.full_stream)
    assert editor.window_full
    assert editor.complete
    editor = spoken.editor()
    editor.whole(samples.full_whole)
    assert editor.window_full


async def _chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _streamed(spoken: WireFormat, samples: Samples, body: bytes, *, is_stream: bool) -> list[bytes]:
    request = spoken.read(samples.request)
    pieces = _chunks(*(body[start : start + 7] for start in range(0, len(body), 7)))
    found = [piece async for piece in spoken.editor(request=request).as_stream(pieces, is_stream=is_stream, headers=())]
    return [frame + b"\n\n" for frame in b"".join(found).split(b"\n\n")[:-1]]


async def test_a_whole_answer_is_no_stream(spoken: WireFormat, samples: Samples) -> None:
    with pytest.raises(UpstreamUnreadable, match="no stream"):
        await _streamed(spoken, samples, samples.whole, is_stream=False)


async def test_a_stream_stays_the_stream_that_it_is(spoken: WireFormat, samples: Samples) -> None:
    body = b"".join(samples.stream)
    for is_stream in (False, True):
        assert await _streamed(spoken, samples, body, is_stream=is_stream) == list(samples.stream)
    assert await _streamed(spoken, samples, b"", is_stream=True) == []
    with pytest.raises(UpstreamUnreadable):
        await _streamed(spoken, samples, b"", is_stream=False)


async def test_an_error_with_status_200_ends_the_stream_as_an_error(spoken: WireFormat, samples: Samples) -> None:
    body = b'{"type":"error",\n"error":{"type":"api_error","message":"Oh.","code":529}}'
    editor = spoken.editor()
    frames_of(editor, await _streamed(spoken, samples, body, is_stream=False))
    assert editor.failed
    assert b"Oh." in editor.error


async def test_what_is_neither_is_unreadable(spoken: WireFormat, samples: Samples) -> None:
    for body in (b"<html>Bad gateway</html>", b"hi\n", b"{}", b"[1]", b"{broken", b'{"a":1,"a":2}'):
        with pytest.raises(UpstreamUnreadable):
            await _streamed(spoken, samples, body, is_stream=False)


# Early frames


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_frames_before_the_providers_make_one_stream_with_them(
    spoken: WireFormat, samples: Samples, shape: EventShape, *, failed: bool
) -> None:
    request = spoken.read(samples.request)
    early = spoken.editor.EARLY(shape, "cmp_1", request.model)
    own = [early.frame("compaction_started", {"messages": 7}), early.keep_alive(), early.keep_alive()]
    own.append(early.frame("compaction_failed" if failed else "compaction_completed", {"status": "full"}, STATUS))
    assert all(frame.endswith(b"\n\n") and frame.count(b"\n\n") == 1 for frame in own)
    assert b"compaction_started" in own[0]
    assert (b"compaction_failed" if failed else b"compaction_completed") in own[3]
    assert b"cmp_1" in own[0]
    assert b"cmp_1" in own[3]
    assert b"compaction" not in own[1]
    editor = spoken.editor(TOLD, request, early)
    frames = [*own, *frames_of(editor, samples.stream)]
    if shape == "chunk":  # The safest frames are to be understood by those who know of no others.
        samples.check_stream(frames)
    else:
        samples.check_stream(frames[len(own) :])
    assert editor.complete
    answers = (read_answer(spoken.summaries, b"".join(each)) for each in (frames[len(own) :], samples.stream))
    assert without_bill(next(answers)) == without_bill(next(answers))


def without_bill(answer: SummaryAnswer | None) -> SummaryAnswer | None:
    """Which names the model, as `test_bills` has it: the client's stream has the name that we gave it."""
    return None if answer is None else replace(answer, bill=UNBILLED)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_after_early_frames_passes_in_the_providers_words(
    spoken: WireFormat, samples: Samples, shape: EventShape
) -> None:
    request = spoken.read(samples.request)
    early = spoken.editor.EARLY(shape, "cmp_1", request.model)
    early.frame("compaction_started", {})
    early.frame("compaction_completed", {})
    editor = spoken.editor(TOLD, request, early)
    assert editor.edit(samples.overflow_frame) == samples.overflow_frame
    assert editor.error


# Errors


def test_errors_of_our_own_are_told_in_the_formats_shape(spoken: WireFormat, samples: Samples) -> None:
    assert ERROR.message in json.dumps(json.loads(spoken.editor.own_error(ERROR)))
    frames = frames_in(spoken.editor().error_frame(ERROR))
    assert frames[-1].endswith(b"\n\n")
    assert all(ERROR.message in json.dumps(samples.told_in(frame)) for frame in frames)
    editor = spoken.editor()
    frames_of(editor, frames)
    assert editor.failed


def test_a_providers_refusal_keeps_its_words_in_a_stream(spoken: WireFormat, samples: Samples) -> None:
    status, body, message = samples.refusal
    frames = frames_in(spoken.editor().refusal_frame(status, [(b"retry-after", b"7")], body, 1_700_000_000.0))
    assert all(message in json.dumps(samples.told_in(frame)) for frame in frames)
    odd = frames_in(spoken.editor().refusal_frame(503, (), b"<p>Bad\n\ngateway</p>", 1_700_000_000.0))
    assert len(odd) == len(frames)
    for sent in (frames, odd):
        editor = spoken.editor()
        assert frames_of(editor, sent) == sent
        assert editor.failed
        assert editor.complete


# Overflow


def test_a_refusal_for_the_prompts_size_is_recognised(spoken: WireFormat, samples: Samples) -> None:
    status, body = samples.overflow
    found = read_overflow(status, decoded_body(body))
    assert found is not None
    assert found.limit is not None
    status, body, _ = samples.refusal
    assert read_overflow(status, decoded_body(body)) is None
    assert spoken.spec.usage_option is None or not spoken.spec.usage_option.search(body)


def test_a_refusal_in_a_stream_is_recognised(spoken: WireFormat, samples: Samples) -> None:
    editor = spoken.editor()
    frames_of(editor, (*samples.stream[:1], *FrameSplitter().feed(samples.overflow_frame)))
    assert (editor.failed, editor.complete) == (True, True)
    assert read_overflow(200, decoded_body(editor.error), first_frame=True) is not None


# Summaries


def options_of(spoken: WireFormat, model: str = "m", without: Iterable[str] = ()) -> dict[str, Any]:
    manners = Manners(spoken.summaries.cap(model), frozenset(without))
    return {**spoken.summaries.options(manners, model, 300, 8_000, {"temperature": 0})}


def test_a_quoting_call_holds_the_rules_the_transcript_and_the_cap(spoken: WireFormat) -> None:
    options = options_of(spoken)
    body = spoken.summaries.quoting(summary_request("Do it.", "what was said", 10, 300), "m", options)
    texts = json.dumps(json.loads(body))
    assert "what was said" in texts
    assert texts.count("Do it.") == 2
    sent = json.loads(body)
    assert sent.get("model") == "m" or b"/models/m:" in spoken.summaries.target("m")
    held = sent.get(spoken.spec.summary.options_member, sent)
    assert held["temperature"] == 0
    assert held[spoken.summaries.cap("m")] == 300
    assert spoken.summaries.target("m", query=b"key=k").startswith(b"/v1")
    assert spoken.summaries.target("m", query=b"key=k").endswith(b"key=k")


def test_a_model_that_reasons_first_is_allowed_more(spoken: WireFormat, samples: Samples) -> None:
    assert options_of(spoken, samples.reasoner)[spoken.summaries.cap(samples.reasoner)] == 8_300


def test_a_continuing_call_holds_the_conversation_byte_for_byte(spoken: WireFormat, samples: Samples) -> None:
    request = spoken.read(samples.request)
    body = spoken.summaries.continuing(request.raw_messages, request.cached, "Write notes.", "m", options_of(spoken))
    assert request.cached
    assert all(raw in body for raw in request.cached.values())
    places = [body.find(raw) for raw in request.raw_messages]
    assert -1 not in places
    assert places == sorted(places)
    assert body.find(b"Write notes.") > places[-1]


def test_no_operator_sets_what_a_call_says_by_itself(spoken: WireFormat, samples: Samples) -> None:
    assert set(spoken.read(samples.request).cached) <= spoken.summaries.spec.summary.own_members
    body = spoken.summaries.quoting(summary_request("Do.", "said", 10, 300), "m", options_of(spoken))
    assert set(json.loads(body)) - {"temperature"} <= spoken.summaries.spec.summary.own_members <= SAID_BY_STENO


def test_what_a_model_does_not_take_is_left_out(spoken: WireFormat, samples: Samples) -> None:
    for member in spoken.summaries.spec.summary.optional:
        assert member not in options_of(spoken, samples.reasoner, [member])
    assert set(spoken.summaries.spec.summary.optional) <= set(options_of(spoken, samples.reasoner))
    assert "temperature" not in options_of(spoken, without=["temperature"])


def test_a_refusal_teaches_how_to_ask(spoken: WireFormat, samples: Samples) -> None:
    dialect = spoken.summaries
    for model, refusal, refused, instead in samples.lessons:
        manners, options = Manners(dialect.cap(model)), options_of(spoken, model)
        assert refused in options
        taught = dialect.taught(manners, refusal, options)
        assert taught is not None
        asked = dialect.options(taught, model, 300, 8_000, {"temperature": 0})
        assert refused not in asked
        assert not instead or instead in asked
        assert dialect.taught(taught, refusal, asked) in (None, taught), "it would be asked for ever"
    for refusal in samples.nothing_taught:
        assert dialect.taught(Manners(dialect.cap("m")), refusal, options_of(spoken)) is None


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_answers_are_read_whichever_pieces_they_come_in(spoken: WireFormat, samples: Samples, size: int) -> None:
    for body, expected in samples.answers:
        reader = spoken.summaries.reader()
        for start in range(0, len(body), size):
            reader.feed(body[start : start + size])
        reader.end()
        assert without_bill(reader.answer) == expected
        assert re.fullmatch(r"[A-Za-z0-9_-]*", expected.word)


def test_what_is_no_answer_or_a_part_of_one_is_none(spoken: WireFormat, samples: Samples) -> None:
    for body in samples.no_answers:
        assert read_answer(spoken.summaries, body) is None, body


def test_an_error_in_place_of_an_answer_is_known(spoken: WireFormat, samples: Samples) -> None:
    begun = b"".join(samples.stream[: samples.ends_at])
    for first, body in ((True, samples.overflow_frame), (False, begun + samples.overflow_frame)):
        reader = spoken.summaries.reader()
        reader.feed(body)
        reader.end()
        assert reader.answer is None
        assert reader.error_is_first is first
        assert read_overflow(200, reader.error, first_frame=True) is not None
