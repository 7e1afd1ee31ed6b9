"""The judge of replays: logs written by hand, one right and each of the others wrong in one way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from app.replay.evidence import MessageReader
from app.replay.judge import Judge, SummaryCalls, Verdict
from app.simulator import Record

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
        self._judge = Judge("one", calls or SummaryCalls(), MessageReader())
        self._requests, self._sequence = count(1), count(1)

    def request(self, history: Sequence[Any], payload: Sequence[Any], *made: Record, status: int = 200) -> Verdict:
        chat = self.record("chat", payload, status, "fine")
        return self._judge.judge(next(self._requests), body(history), [*made, chat])

    def without_payload(self, history: Sequence[Any]) -> Verdict:
        return self._judge.judge(next(self._requests), body(history), [])

    def call(self, quoted: Sequence[dict[str, Any]], text: str, **changes: Any) -> Record:
        """A summary call that was shown these messages, in Steno's form."""
        sections = [f"<ab12 {number} {heading(message)}>\n{shown(message)}" for number, message in enumerate(quoted, 1)]
        return self._asked(sections, text, **changes)

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
