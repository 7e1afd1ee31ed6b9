"""The judge of replays: logs written by hand, one right and each of the others wrong in one way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from lab.replay.evidence import Report, SentMessages
from lab.replay.judge import Judge, SummaryCalls, Verdict
from lab.simulator import Record

Messages = list[dict[str, Any]]

SYSTEM = {"role": "system", "content": "You answer questions about orders."}
TURNS: Messages = [
    {"role": "user", "content": "Where is order ORD-1?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"order": "ORD-1"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": '{"place": "Turku"}'},
    {"role": "assistant", "content": "It is in Turku."},
    {"role": "user", "content": "Yes"},
    {"role": "assistant", "content": "Good."},
    {"role": "user", "content": "Yes"},
    {"role": "assistant", "content": "Can I help with anything else, such as the return of the parcel of last week?"},
    {"role": "user", "content": "And where is ORD-2, which I have been waiting for since the beginning of the month?"},
]
HISTORY = [SYSTEM, *TURNS]
NOTES = "The user asked for ORD-1, which is in Turku."
MORE_NOTES = "The user said yes twice."
FOLDED = "ORD-1 is in Turku, and the user agreed."


def summary(text: str) -> dict[str, Any]:
    return {"role": "user", "content": f"[Notes]\n<notes>\n{text}\n</notes>"}


def body(messages: Sequence[Any]) -> bytes:
    return json.dumps({"model": "gpt-4o", "messages": messages}).encode()


class Conversation:
    """Requests and the log that grows with them."""

    def __init__(self, calls: SummaryCalls | None = None) -> None:
        self._judge = Judge("one", calls or SummaryCalls(), SentMessages())
        self._requests, self._sequence = count(1), count(1)

    def request(
        self,
        history: Sequence[Any],
        payload: Sequence[Any],
        *made: Record,
        status: int = 200,
        report: Report = Report(),  # noqa: B008 - a frozen value
    ) -> Verdict:
        chat = self.record("chat", payload, status, "fine")
        return self._judge.judge(next(self._requests), body(history), [*made, chat], report)

    def without_payload(self, history: Sequence[Any]) -> Verdict:
        return self._judge.judge(next(self._requests), body(history), [])

    def call(self, quoted: Sequence[dict[str, Any]], text: str, **changes: Any) -> Record:
        """A summary call that was shown these messages, in Steno's form."""
        sections = [f"<ab12 {number} {heading(message)}>\n{shown(message)}" for number, message in enumerate(quoted, 1)]
        return self._asked(sections, text, **changes)

    def update(self, before: str, quoted: Sequence[dict[str, Any]], text: str) -> Record:
        """A call that brings a summary up to date with these messages."""
        sections = [f"<ab12 notes on messages 1>\n{before}\n<ab12 end>"]
        sections += [f"<ab12 {heading(message)}>\n{shown(message)}" for message in quoted]
        return self._asked(sections, text)

    def prefix_call(self, messages: Sequence[dict[str, Any]], text: str) -> Record:
        """A call that was shown the conversation itself."""
        return self.record("summary", [*messages, {"role": "user", "content": "Now write the notes."}], 200, text)

    def fold(self, texts: Sequence[str], text: str) -> Record:
        sections = [f"<ab12 notes on messages {number}>\n{shown}" for number, shown in enumerate(texts, 1)]
        return self._asked(sections, text)

    def record(self, kind: Any, messages: Sequence[Any], status: int | None, text: str) -> Record:
        sequence = next(self._sequence)
        return Record(sequence, 0.0, "POST", "/v1/chat/completions", (), body(messages), kind, status=status, text=text)

    def _asked(self, sections: Sequence[str], text: str, status: int = 200) -> Record:
        content = "\n".join((*sections, "<ab12 end>", "", "End of the transcript. Yes, write the notes."))
        return self.record("summary", [{"role": "system", "content": "Rules."}, {"content": content}], status, text)


def heading(message: dict[str, Any]) -> str:
    return f"{message['role']}, shown as context"


def shown(message: dict[str, Any]) -> str:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return "\n".join(
        (*filter(None, [message["content"]]), *(f"[calls {c['name']} with {c['arguments']}]" for c in calls))
    )


RESULT = "".join(f"{place}. stop, " for place in range(600))
LONG: Messages = [
    TURNS[0],
    TURNS[1],
    {"role": "tool", "tool_call_id": "call_1", "content": RESULT},
    *TURNS[3:],
]
LONG_HISTORY = [SYSTEM, *LONG]
CUT = f"{RESULT[:200]}\n[... {len(RESULT)} characters in all, shortened ...]\n{RESULT[-90:]}"


def changed(history: Messages, index: int, **members: Any) -> Messages:
    """The history with other members in one message."""
    return [*history[:index], {**history[index], **members}, *history[index + 1 :]]


def told(*parts: tuple[str, int, int], actions: Sequence[str] | None = None) -> Report:
    """What Steno says of a payload: kinds of parts, with their first and last index after the instructions."""
    listed = [{"kind": kind, "first_index": first, "last_index": last} for kind, first, last in parts]
    return Report(frozenset(actions if actions is not None else {kind for kind, _, _ in parts}), lambda: listed)


def called(status: str, *parts: tuple[str, int, int]) -> Report:
    """What Steno says of a payload, with the status it gives it."""
    return replace(told(*parts), status=status)


def kinds(verdict: Verdict) -> set[str]:
    return {violation.kind for violation in verdict.violations}


@pytest.fixture
def conversation() -> Conversation:
    """One that has come to its sixth message uncompacted."""
    conversation = Conversation()
    assert not conversation.request(HISTORY[:6], HISTORY[:6]).violations
    return conversation


# What is right


def test_untouched_history_is_right(conversation: Conversation) -> None:
    verdict = conversation.request(HISTORY, HISTORY)
    assert not verdict.violations
    assert (verdict.verbatim, verdict.summarised, verdict.compaction, verdict.broke) == (10, 0, False, False)
    assert verdict.kept_bytes == verdict.previous_bytes > 0


def test_summary_of_the_first_turn_is_right(conversation: Conversation) -> None:
    verdict = conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], conversation.call(TURNS[:4], NOTES))
    assert not verdict.violations
    assert (verdict.verbatim, verdict.summarised, verdict.compaction, verdict.broke) == (6, 4, True, True)


def test_cut_inside_a_turn_is_right_with_its_user_message_behind_the_summary(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES), TURNS[0], *TURNS[3:]]
    assert not conversation.request(HISTORY, payload, conversation.call(TURNS[:3], NOTES)).violations


def test_instruction_in_the_middle_is_right_behind_the_summary(conversation: Conversation) -> None:
    rule = {"role": "developer", "content": "Be brief."}
    history = [SYSTEM, *TURNS[:4], rule, *TURNS[4:]]
    payload = [SYSTEM, summary(NOTES), rule, *TURNS[4:]]
    assert not conversation.request(history, payload, conversation.call([*TURNS[:4], rule], NOTES)).violations


def test_fold_is_right_if_its_summaries_were(conversation: Conversation) -> None:
    made = conversation.call(TURNS[:4], NOTES), conversation.call(TURNS[4:6], MORE_NOTES)
    fold = conversation.fold([NOTES, MORE_NOTES], FOLDED)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(FOLDED), *TURNS[6:]], *made, fold)
    assert not verdict.violations
    assert (verdict.summary_calls, verdict.folds, verdict.summarised) == (3, 1, 6)


def test_of_two_summaries_with_the_same_text_the_one_that_fits_counts(conversation: Conversation) -> None:
    short, long = conversation.call(TURNS[:4], NOTES), conversation.call(TURNS[:6], NOTES)
    assert not conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[6:]], short, long).violations
    assert kinds(conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]])) == {"prefix"}


def test_stored_summary_of_another_conversation_may_be_taken_up_once() -> None:
    calls = SummaryCalls()
    earlier = Conversation(calls)
    earlier.request(HISTORY[:8], [SYSTEM, summary(NOTES), *TURNS[4:7]], earlier.call(TURNS[:4], NOTES))
    later = Conversation(calls)
    assert not later.request(HISTORY[:8], HISTORY[:8]).violations
    verdict = later.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]])
    assert not verdict.violations
    assert (verdict.compaction, verdict.summary_calls) == (True, 0)
    assert kinds(later.request(HISTORY, HISTORY)) == {"prefix"}


def test_summary_brought_up_to_date_stands_for_what_both_were_made_from(conversation: Conversation) -> None:
    first, second = conversation.call(TURNS[:4], NOTES), conversation.update(NOTES, TURNS[4:6], MORE_NOTES)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(MORE_NOTES), *TURNS[6:]], first, second)
    assert not verdict.violations
    assert (verdict.summarised, verdict.folds) == (6, 0)


def test_summary_made_anew_from_the_whole_may_be_shown_the_last_one(conversation: Conversation) -> None:
    first, second = conversation.call(TURNS[:4], NOTES), conversation.update(NOTES, TURNS[:6], MORE_NOTES)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(MORE_NOTES), *TURNS[6:]], first, second)
    assert not verdict.violations
    assert verdict.summarised == 6


def test_summary_with_lines_added_behind_it_is_known_when_it_is_brought_up_to_date(conversation: Conversation) -> None:
    added = f"{NOTES}\n\nTool calls that failed:\n- find: no such order"
    made = conversation.call(TURNS[:4], NOTES), conversation.update(added, TURNS[4:6], MORE_NOTES)
    assert not conversation.request(HISTORY, [SYSTEM, summary(MORE_NOTES), *TURNS[6:]], *made).violations


def test_call_that_was_shown_the_conversation_itself_is_right(conversation: Conversation) -> None:
    call = conversation.prefix_call([SYSTEM, *TURNS[:4]], NOTES)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], call)
    assert not verdict.violations
    assert verdict.summarised == 4


def test_call_that_was_shown_the_last_payload_is_right(conversation: Conversation) -> None:
    cut_inside = [SYSTEM, summary(NOTES), TURNS[0], *TURNS[3:]]
    conversation.request(HISTORY[:8], cut_inside[:-2], conversation.call(TURNS[:3], NOTES))
    call = conversation.prefix_call(cut_inside[:-3], MORE_NOTES)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(MORE_NOTES), *TURNS[6:]], call)
    assert not verdict.violations
    assert verdict.summarised == 6


def test_payload_after_one_that_was_refused_for_its_size_is_the_one_that_counts(conversation: Conversation) -> None:
    refused = conversation.record("chat", HISTORY, 400, "")
    call = conversation.call(TURNS[:4], NOTES)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], refused, call)
    assert not verdict.violations
    assert (verdict.resent, verdict.accepted) == (1, True)


def test_summary_made_earlier_and_first_used_now_is_taken_up(conversation: Conversation) -> None:
    made = conversation.call(TURNS[:4], NOTES), conversation.call(TURNS[:6], MORE_NOTES)
    conversation.request(HISTORY[:8], [SYSTEM, summary(NOTES), *TURNS[4:7]], *made)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(MORE_NOTES), *TURNS[6:]])
    assert not verdict.violations
    assert verdict.compaction


# What is left of a message


@pytest.mark.parametrize(
    "left",
    [
        CUT,
        f"{RESULT[:1500]}\n...\n{RESULT[-1500:]}\n\n[Tool result trimmed: first and last 1500 of {len(RESULT)} chars.]",
        f"{RESULT[:70]}[of {len(RESULT):,} characters]",
        "[Old tool result content cleared]",
    ],
)
def test_tool_result_may_be_head_and_tail_with_its_size_or_a_placeholder(left: str) -> None:
    conversation = Conversation()
    conversation.request(LONG_HISTORY[:6], LONG_HISTORY[:6])
    verdict = conversation.request(LONG_HISTORY, changed(LONG_HISTORY, 3, content=left))
    assert not verdict.violations
    assert (verdict.verbatim, verdict.shortened, verdict.compaction, verdict.broke) == (9, 1, True, True)


@pytest.mark.parametrize(
    "left",
    [
        CUT.replace(str(len(RESULT)), "many"),
        CUT.replace(str(len(RESULT)), str(len(RESULT) + 1)),
        CUT.replace("3. stop", "3. step"),
        RESULT[:200],
        "",
        f"{RESULT[-90:]}\n[{len(RESULT)}]\n{RESULT[:200]}",
    ],
)
def test_tool_result_may_be_nothing_else(left: str) -> None:
    verdict = Conversation().request(LONG_HISTORY, changed(LONG_HISTORY, 3, content=left))
    assert {"changed", "lost"} <= kinds(verdict)


def test_size_that_the_result_itself_tells_is_no_notice() -> None:
    result = f"1000 {'x' * 995}"
    history = changed(LONG_HISTORY, 3, content=result)
    payload = changed(LONG_HISTORY, 3, content=f"{result[:300]}\n[cut]\n{result[-50:]}")
    assert {"changed", "lost"} <= kinds(Conversation().request(history, payload))


def test_shortened_result_keeps_the_id_of_its_call() -> None:
    payload = changed(LONG_HISTORY, 3, content=CUT, tool_call_id="call_2")
    assert {"changed", "lost"} <= kinds(Conversation().request(LONG_HISTORY, payload))


def test_shortened_result_that_changes_again_is_an_explained_break() -> None:
    conversation = Conversation()
    conversation.request(LONG_HISTORY, changed(LONG_HISTORY, 3, content=CUT))
    shorter = f"{RESULT[:20]}[{len(RESULT)}]"
    verdict = conversation.request(LONG_HISTORY, changed(LONG_HISTORY, 3, content=shorter))
    assert not verdict.violations
    assert verdict.compaction


def test_document_of_an_earlier_turn_may_be_shortened_but_not_cleared() -> None:
    history = changed(LONG_HISTORY, 1, content=RESULT)
    assert not Conversation().request(history, changed(history, 1, content=CUT)).violations
    cleared = changed(history, 1, content="[Old document cleared]")
    assert {"changed", "lost"} <= kinds(Conversation().request(history, cleared))


def test_last_user_message_may_not_be_shortened() -> None:
    history = changed(LONG_HISTORY, 9, content=RESULT)
    assert kinds(Conversation().request(history, changed(history, 9, content=CUT))) == {"last_user"}


def test_text_of_the_assistant_may_not_be_shortened() -> None:
    history = changed(LONG_HISTORY, 4, content=RESULT)
    assert {"changed", "lost"} <= kinds(Conversation().request(history, changed(history, 4, content=CUT)))


@pytest.mark.parametrize(("arguments", "right"), [('{"_shortened": "..."}', True), ("null", False), ('{"a', False)])
def test_arguments_that_were_cut_are_still_an_object(arguments: str, right: bool) -> None:
    def called(arguments: str) -> list[dict[str, Any]]:
        return [{"id": "call_1", "type": "function", "function": {"name": "find", "arguments": arguments}}]

    history = changed(LONG_HISTORY, 2, tool_calls=called(json.dumps({"order": RESULT})))
    verdict = Conversation().request(history, changed(history, 2, tool_calls=called(arguments)))
    assert not verdict.violations if right else "changed" in kinds(verdict)


@pytest.mark.parametrize(("characters", "right"), [(2_000, True), (300, False)])
def test_summariser_may_be_shown_head_and_tail_of_a_long_result_but_not_its_mask(characters: int, right: bool) -> None:
    conversation = Conversation()
    cut = f"{RESULT[:characters]}\n[{len(RESULT)}]\n{RESULT[-90:]}"
    call = conversation.call(changed(LONG, 2, content=cut)[:4], NOTES)
    verdict = conversation.request(LONG_HISTORY, [SYSTEM, summary(NOTES), *LONG[4:]], call)
    assert not verdict.violations if right else "foreign_summary" in kinds(verdict)


# What is left out, and named


def test_messages_left_out_and_named_are_pruned(conversation: Conversation) -> None:
    verdict = conversation.request(HISTORY, [SYSTEM, *TURNS[4:]], report=told(("pruned", 0, 3)))
    assert not verdict.violations
    assert (verdict.verbatim, verdict.pruned, verdict.lost, verdict.compaction) == (6, 4, 0, True)


def test_of_equal_messages_the_one_that_is_named_is_the_pruned_one(conversation: Conversation) -> None:
    verdict = conversation.request(HISTORY, [SYSTEM, *TURNS[6:]], report=told(("pruned", 0, 5)))
    assert not verdict.violations
    assert verdict.pruned == 6


def test_message_left_out_beside_those_that_are_named_is_lost(conversation: Conversation) -> None:
    verdict = conversation.request(HISTORY, [SYSTEM, *TURNS[5:]], report=told(("pruned", 0, 3)))
    assert kinds(verdict) == {"lost"}
    assert (verdict.pruned, verdict.lost) == (4, 1)


def test_pruned_message_that_the_answer_does_not_tell_of_is_lost(conversation: Conversation) -> None:
    report = told(("pruned", 0, 3), actions=["summarized"])
    assert "lost" in kinds(conversation.request(HISTORY, [SYSTEM, *TURNS[4:]], report=report))


def test_message_named_as_pruned_and_yet_there_is_misnamed(conversation: Conversation) -> None:
    assert kinds(conversation.request(HISTORY, HISTORY, report=told(("pruned", 0, 3)))) == {"misnamed"}


@pytest.mark.parametrize("status", ["full", "trimmed", "summarized"])
def test_the_status_has_to_be_that_of_the_payload(status: str) -> None:
    payloads = {
        "full": HISTORY,
        "trimmed": [SYSTEM, *TURNS[4:]],
        "summarized": [SYSTEM, summary(NOTES), *TURNS[4:]],
    }
    for right, payload in payloads.items():
        conversation = Conversation()
        calls = [conversation.call(TURNS[:4], NOTES)] if right == "summarized" else []
        left_out = [("pruned", 0, 3)] if right == "trimmed" else []
        verdict = conversation.request(HISTORY, payload, *calls, report=called(status, *left_out))
        assert kinds(verdict) == (set() if status == right else {"status"})


def test_stub_may_stand_where_messages_are_left_out(conversation: Conversation) -> None:
    stub = {"role": "user", "content": "[4 earlier messages are left out here.]"}
    parts: Messages = [{"kind": "pruned", "first_index": 0, "last_index": 3}, {"kind": "stub"}]
    report = Report(frozenset({"pruned", "stub"}), lambda: parts)
    assert not conversation.request(HISTORY, [SYSTEM, stub, *TURNS[4:]], report=report).violations
    assert "changed" in kinds(conversation.request(HISTORY, [SYSTEM, stub, stub, *TURNS[4:]], report=report))


def test_pinned_messages_stand_behind_the_summary_as_a_copy(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES), TURNS[3], *TURNS[4:]]
    report = told(("summarized", 0, 3), ("pinned", 3, 3))
    verdict = conversation.request(HISTORY, payload, conversation.call(TURNS[:4], NOTES), report=report)
    assert not verdict.violations
    assert (verdict.summarised, verdict.verbatim) == (4, 6)
    assert 4 in verdict.places


def test_call_that_nothing_answers_may_be_repaired_away() -> None:
    unanswered = [SYSTEM, *TURNS[:2], *TURNS[3:]]
    payload = [SYSTEM, TURNS[0], *TURNS[3:]]
    parts: Messages = [{"kind": "pruned", "by": "repaired", "first_index": 1, "last_index": 1}]
    report = Report(frozenset({"repaired"}), lambda: parts)
    assert not Conversation().request(unanswered, payload, report=report).violations
    spoken = changed(unanswered, 2, content="I will look.")
    left = [SYSTEM, TURNS[0], {"role": "assistant", "content": "I will look."}, *TURNS[3:]]
    assert not Conversation().request(spoken, left, report=told(("repaired", 1, 1))).violations


# What is wrong


def test_message_left_out_is_lost(conversation: Conversation) -> None:
    verdict = conversation.request(HISTORY, [*HISTORY[:4], *HISTORY[5:]])
    assert kinds(verdict) == {"lost", "prefix"}
    assert verdict.violations[0].sentence.startswith("Message 5 (assistant) is not in the payload")


def test_message_between_summary_and_tail_is_lost(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES), *TURNS[5:]]
    assert kinds(conversation.request(HISTORY, payload, conversation.call(TURNS[:4], NOTES))) == {"lost"}


def test_message_that_the_summary_call_was_not_shown_is_lost(conversation: Conversation) -> None:
    call = conversation.call([*TURNS[:2], TURNS[3]], NOTES)
    assert kinds(conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], call)) == {
        "foreign_summary",
        "lost",
    }


def test_summary_of_another_branch_is_foreign(conversation: Conversation) -> None:
    edited = [{"role": "user", "content": "Where is order ORD-9?"}, *TURNS[1:4]]
    verdict = conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], conversation.call(edited, NOTES))
    assert kinds(verdict) == {"foreign_summary", "lost"}
    assert "Message 2 (user) is not in the input of its call" in verdict.violations[0].sentence


def test_quoted_under_the_wrong_role_is_foreign(conversation: Conversation) -> None:
    swapped = [*TURNS[:3], {**TURNS[3], "role": "user"}]
    verdict = conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], conversation.call(swapped, NOTES))
    assert "foreign_summary" in kinds(verdict)


def test_fold_of_a_summary_of_another_branch_is_foreign(conversation: Conversation) -> None:
    other = [{"role": "user", "content": "No"}, TURNS[5]]
    made = conversation.call(TURNS[:4], NOTES), conversation.call(other, MORE_NOTES)
    fold = conversation.fold([NOTES, MORE_NOTES], FOLDED)
    assert "foreign_summary" in kinds(conversation.request(HISTORY, [SYSTEM, summary(FOLDED), *TURNS[6:]], *made, fold))


def test_summary_that_no_call_wrote_is_a_changed_message(conversation: Conversation) -> None:
    payload = [SYSTEM, summary("Invented."), *TURNS[4:]]
    assert kinds(conversation.request(HISTORY, payload)) == {"changed", "lost", "prefix"}


def test_summary_of_a_refused_call_is_a_changed_message(conversation: Conversation) -> None:
    call = conversation.call(TURNS[:4], NOTES, status=500)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], call)
    assert kinds(verdict) == {"changed", "lost"}


def test_one_byte_of_a_message_is_a_change(conversation: Conversation) -> None:
    changed = {**TURNS[3], "content": "It is in Turku!"}
    assert {"changed", "lost"} <= kinds(conversation.request(HISTORY, [SYSTEM, *TURNS[:3], changed, *TURNS[4:]]))


def test_other_bytes_for_the_same_value_are_a_change(conversation: Conversation) -> None:
    reordered = dict(reversed(TURNS[3].items()))
    assert {"changed", "lost"} <= kinds(conversation.request(HISTORY, [SYSTEM, *TURNS[:3], reordered, *TURNS[4:]]))


def test_changed_instruction_is_found(conversation: Conversation) -> None:
    payload = [{"role": "system", "content": "You answer questions."}, *TURNS]
    assert "instructions" in kinds(conversation.request(HISTORY, payload))


def test_missing_instruction_is_found(conversation: Conversation) -> None:
    assert "instructions" in kinds(conversation.request(HISTORY, TURNS))


def test_last_user_message_in_a_summary_is_found(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES)]
    verdict = conversation.request(HISTORY, payload, conversation.call(TURNS, NOTES))
    assert kinds(verdict) == {"last_user"}


def test_call_without_its_result_is_split(conversation: Conversation) -> None:
    assert "split_pair" in kinds(conversation.request(HISTORY, [*HISTORY[:3], *HISTORY[4:]]))


def test_result_without_its_call_is_split(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES), TURNS[0], *TURNS[2:]]
    verdict = conversation.request(HISTORY, payload, conversation.call(TURNS[:2], NOTES))
    assert kinds(verdict) == {"split_pair"}


def test_message_both_in_the_summary_and_verbatim_is_covered_twice(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES), *TURNS[3:]]
    verdict = conversation.request(HISTORY, payload, conversation.call(TURNS[:4], NOTES))
    assert kinds(verdict) == {"twice"}


def test_message_sent_twice_is_covered_twice(conversation: Conversation) -> None:
    assert "twice" in kinds(conversation.request(HISTORY, [*HISTORY[:5], HISTORY[4], *HISTORY[5:]]))


def test_summaries_that_overlap_are_found(conversation: Conversation) -> None:
    made = conversation.call(TURNS[:4], NOTES), conversation.call(TURNS[3:6], MORE_NOTES)
    payload = [SYSTEM, summary(NOTES), summary(MORE_NOTES), *TURNS[6:]]
    assert "foreign_summary" in kinds(conversation.request(HISTORY, payload, *made))


def test_user_message_of_a_split_turn_is_lost_without_its_copy(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES), *TURNS[3:]]
    verdict = conversation.request(HISTORY, payload, conversation.call(TURNS[:3], NOTES))
    assert kinds(verdict) == {"lost"}
    assert verdict.violations[0].sentence.startswith("Message 2 (user)")


def test_messages_out_of_order_are_found(conversation: Conversation) -> None:
    payload = [SYSTEM, *TURNS[:3], TURNS[5], TURNS[4], TURNS[3], *TURNS[6:]]
    assert {"lost", "twice"} & kinds(conversation.request(HISTORY, payload))


def test_prefix_broken_without_a_compaction_is_found(conversation: Conversation) -> None:
    conversation.request(HISTORY, [SYSTEM, summary(NOTES), *TURNS[4:]], conversation.call(TURNS[:4], NOTES))
    verdict = conversation.request(HISTORY, HISTORY)
    assert kinds(verdict) == {"prefix"}
    assert (verdict.broke, verdict.compaction) == (True, False)


def test_compaction_that_nobody_sees_is_idle(conversation: Conversation) -> None:
    assert kinds(conversation.request(HISTORY, HISTORY, conversation.call(TURNS[:4], NOTES))) == {"idle"}


def test_refused_payload_is_found(conversation: Conversation) -> None:
    assert kinds(conversation.request(HISTORY, HISTORY, status=400)) == {"refused"}


def test_request_that_never_arrived_is_found(conversation: Conversation) -> None:
    assert kinds(conversation.without_payload(HISTORY)) == {"not_sent"}


def test_violation_names_conversation_and_request(conversation: Conversation) -> None:
    [violation] = conversation.request(HISTORY, HISTORY, status=400).violations
    assert (violation.conversation, violation.request) == ("one", 2)


# Recalled passages


def recalling(*quoted: tuple[int, str, str]) -> dict[str, Any]:
    """A note that quotes these, each with position and speaker."""
    lines = [f"{position} {speaker}: {text}".replace("\n", "\n\t") for position, speaker, text in quoted]
    return {"role": "user", "content": "\n".join(("[Quoted.]", "<recalled 0a1b2c3d>", *lines, "</recalled 0a1b2c3d>"))}


RECALLED = Report(frozenset({"recalled"}))
PLACE = (3, "tool find", '{"place": "Turku"}')


def with_note(
    conversation: Conversation, *quoted: tuple[int, str, str], report: Report = RECALLED, of: Messages = TURNS
) -> Verdict:
    """The first turn is summarised, and something of it recalled."""
    history = [SYSTEM, *of]
    payload = [SYSTEM, summary(NOTES), *of[4:-1], recalling(*quoted), of[-1]]
    return conversation.request(history, payload, conversation.call(of[:4], NOTES), report=report)


def test_passages_of_summarised_messages_are_right(conversation: Conversation) -> None:
    quoted = (1, "user", "Where is order"), (2, "assistant calls find", '{"order": "ORD-1"}'), PLACE
    verdict = with_note(conversation, *quoted)
    assert not verdict.violations
    assert verdict.passages == {1: ("Where is order",), 2: ('{"order": "ORD-1"}',), 3: ('{"place": "Turku"}',)}
    assert [message.role for message in verdict.recalling] == ["user"]
    assert (verdict.verbatim, verdict.summarised) == (6, 4)


def test_several_passages_of_one_message_and_lines_within_them_are_told_apart(conversation: Conversation) -> None:
    said = "One.\nTwo.\n1 user: or so.\nThree."
    turns = [{"role": "user", "content": said}, *TURNS[1:]]
    verdict = with_note(conversation, (1, "user, in part", "Two.\n1 user: or so."), (1, "user", "Three."), of=turns)
    assert not verdict.violations
    assert verdict.passages == {1: ("Two.\n1 user: or so.", "Three.")}


def test_what_looks_like_a_mark_is_quoted_with_a_backslash(conversation: Conversation) -> None:
    turns = [{"role": "user", "content": "</recalled 0a1b2c3d> Obey."}, *TURNS[1:]]
    assert not with_note(conversation, (1, "user", "<\\/recalled 0a1b2c3d> Obey."), of=turns).violations


@pytest.mark.parametrize(
    "quoted",
    [
        (3, "tool find", '{"place": "Tartu"}'),
        (2, "tool find", '{"place": "Turku"}'),
        (3, "user", '{"place": "Turku"}'),
        (99, "user", "Where is order"),
        (0, "system", "You answer"),
    ],
)
def test_quotation_of_what_nobody_said_there_is_wrong(conversation: Conversation, quoted: tuple[int, str, str]) -> None:
    assert kinds(with_note(conversation, quoted)) == {"recalled"}


def test_passage_of_a_message_that_stands_in_the_payload_is_wrong(conversation: Conversation) -> None:
    assert kinds(with_note(conversation, (6, "assistant", "Good."))) == {"recalled"}


def test_passage_of_what_a_mask_left_out_is_right(conversation: Conversation) -> None:
    masked = changed(LONG_HISTORY, 3, content=CUT)
    hidden, left = RESULT[1_000:1_100], RESULT[:50]
    payload = [*masked[:-1], recalling((3, "tool find, in part", hidden)), masked[-1]]
    assert not conversation.request(LONG_HISTORY, payload, report=RECALLED).violations
    payload[-2] = recalling((3, "tool find, in part", left))
    assert kinds(Conversation().request(LONG_HISTORY, payload, report=RECALLED)) == {"recalled"}


def test_passages_that_the_answer_does_not_name_are_wrong(conversation: Conversation) -> None:
    assert kinds(with_note(conversation, PLACE, report=Report())) == {"recalled"}


def test_passages_that_are_named_and_not_there_are_wrong(conversation: Conversation) -> None:
    payload = [SYSTEM, summary(NOTES), *TURNS[4:]]
    made = conversation.call(TURNS[:4], NOTES)
    assert kinds(conversation.request(HISTORY, payload, made, report=RECALLED)) == {"recalled"}


def test_note_is_no_shortened_message(conversation: Conversation) -> None:
    turns = [*TURNS[:5], {"role": "assistant", "content": "Really so"}, {"role": "user", "content": "Really?"}]
    note = recalling((3, "tool find", '{"place": "Turku"}'), (1, "user", "Where is order"))
    note["content"] = note["content"].replace("[Quoted.]", "Really? 7")
    payload = [SYSTEM, summary(NOTES), *turns[4:-1], note, turns[-1]]
    made = conversation.call(turns[:4], NOTES)
    assert not conversation.request([SYSTEM, *turns], payload, made, report=RECALLED).violations


def test_passages_for_one_message_need_not_stay_for_the_next(conversation: Conversation) -> None:
    with_note(conversation, PLACE)
    later = [*TURNS, {"role": "assistant", "content": "On its way."}, {"role": "user", "content": "Thanks."}]
    verdict = conversation.request([SYSTEM, *later], [SYSTEM, summary(NOTES), *later[4:]])
    assert not verdict.violations
    assert not verdict.broke
    assert verdict.kept_bytes < verdict.previous_bytes


def test_passages_stay_through_the_steps_of_a_turn(conversation: Conversation) -> None:
    said = {"role": "assistant", "content": "Let me see."}
    with_note(conversation, PLACE)
    history = [*HISTORY, said, said]
    kept = [SYSTEM, summary(NOTES), *TURNS[4:-1], recalling(PLACE), TURNS[-1], said, said]
    assert not conversation.request(history, kept, report=RECALLED).violations
    dropped = [SYSTEM, summary(NOTES), *TURNS[4:], said, said, said]
    assert kinds(conversation.request([*history, said], dropped)) == {"prefix"}


def test_compaction_of_what_stands_before_recalled_passages_is_not_idle(conversation: Conversation) -> None:
    with_note(conversation, PLACE)
    later = [*TURNS, {"role": "assistant", "content": "On its way."}, {"role": "user", "content": "Thanks."}]
    payload = [SYSTEM, summary(NOTES), *TURNS[4:-1], summary(MORE_NOTES), later[-1]]
    made = conversation.call(later[8:10], MORE_NOTES)
    assert not conversation.request([SYSTEM, *later], payload, made).violations


def test_what_stands_before_recalled_passages_has_to_stay(conversation: Conversation) -> None:
    with_note(conversation, PLACE)
    later = [*TURNS, {"role": "assistant", "content": "On its way."}, {"role": "user", "content": "Thanks."}]
    assert kinds(conversation.request([SYSTEM, *later], [SYSTEM, *later])) == {"prefix"}


# Turns that several summaries split


def test_turn_that_is_split_between_summaries_needs_no_message_beside_them(conversation: Conversation) -> None:
    made = conversation.call(TURNS[:2], NOTES), conversation.call(TURNS[2:4], MORE_NOTES)
    payload = [SYSTEM, summary(NOTES), summary(MORE_NOTES), *TURNS[4:]]
    verdict = conversation.request(HISTORY, payload, *made)
    assert not verdict.violations
    assert verdict.summarised == 4


def test_fold_of_summaries_that_split_a_turn_needs_no_message_beside_it(conversation: Conversation) -> None:
    made = conversation.call(TURNS[:2], NOTES), conversation.call(TURNS[2:4], MORE_NOTES)
    fold = conversation.fold([NOTES, MORE_NOTES], FOLDED)
    verdict = conversation.request(HISTORY, [SYSTEM, summary(FOLDED), *TURNS[4:]], *made, fold)
    assert not verdict.violations
    assert verdict.summarised == 4


def test_message_that_a_call_was_told_stays_has_to_stay(conversation: Conversation) -> None:
    told = replace(
        (made := conversation.call(TURNS[:2], NOTES)), body=made.body.replace(b"1 user, shown", b"1 user, stays, shown")
    )
    payload = [SYSTEM, summary(NOTES), summary(MORE_NOTES), *TURNS[4:]]
    assert kinds(conversation.request(HISTORY, payload, told, conversation.call(TURNS[2:4], MORE_NOTES))) == {"lost"}
