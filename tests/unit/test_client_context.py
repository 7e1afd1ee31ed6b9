"""Client context: blocks that a client puts into user messages are found, and repeated where they are omitted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.decision import settle
from app.compaction.plan import expected_view
from app.compaction.planning_state import Path, Policy, build_view, initial_state
from app.compaction.trim import fit, prune
from app.compaction.verify import coverage_of, problems
from app.compaction.view import Altered, Conversation, Note, Part, Verbatim, View, carried_context, whole
from app.conversation.client_context import (
    CARRIED_OVER,
    CONTEXT,
    ClientContext,
    ContextKind,
    blocks_in,
    is_client_text,
    without_context,
)
from app.conversation.messages import Kind, Message
from app.conversation.reasons import Code
from app.tokens.estimate import Costs
from tests.unit.conversations import IDENTITY, SETTINGS, budget, chunk, conversation, cost, message, turns, words

CLAUDE_CONTEXT = (
    "<system-reminder>\nAs you answer the user's questions, you can use the following context:\n# claudeMd\nBe kind.\n"
)
CLAUDE = f"{CLAUDE_CONTEXT}</system-reminder>"
REMINDER = "<system-reminder>The list is empty.</system-reminder>"


def environment(folder: str) -> str:
    return f"<environment_context><cwd> {folder} </cwd></environment_context>"


def user(*texts: str, kind: Kind = Kind.USER, **members: object) -> Message:
    made = message("user", "|".join(texts), tokens=sum(len(text.split()) for text in texts))
    return replace(made, kind=kind, texts=texts, **members)


def found(*texts: str, kind: Kind = Kind.USER, **members: object) -> list[str]:
    return [block.text for block in blocks_in(user(*texts, kind=kind, **members), 0)]


def holding(talk: Conversation, room: int = 1_000) -> Conversation:
    return talk.with_client_context(ClientContext(talk.transcript, room, cost))


def noted(view: View) -> list[str]:
    return [part.text for part in view.parts if isinstance(part, Note) and part.kind == "client_instructions"]


def test_no_room_is_expected_for_context_in_a_message_that_stays() -> None:
    talk = conversation(user(CLAUDE, "Do it."), *(message("assistant", f"step {n}") for n in range(9)))
    expected = [expected_view(each, Path(), 5, 1, budget(), SETTINGS) for each in (talk, holding(talk))]
    assert expected[0] == expected[1]


# Marks


@pytest.mark.parametrize("kind", CONTEXT, ids=lambda kind: kind.begins[:40])
def test_each_kind_is_found_at_the_beginning_of_a_message(kind: ContextKind) -> None:
    block = f"{kind.begins} for /srv\nBe kind.\n{kind.ends}"
    assert found(block) == [block]
    assert found(f"\n {block}\n", "What now?") == [f"\n {block}\n"]
    assert is_client_text((block,))
    if kind.ends:
        assert found(f"{block}\n\nWhat now?") == [f"{block}\n\n"]
        assert found(f"{kind.begins} for /srv\nBe kind.") == [], "nothing ends it"
        assert not is_client_text((f"{block}\n\nWhat now?",))
        assert without_context((f"{block}\n\nWhat now?",)) == ("What now?",)


def test_blocks_stand_one_behind_the_other_in_one_text_and_in_several() -> None:
    texts = (f"{REMINDER}\n{CLAUDE}\n", environment("/srv"), "What now?")
    assert found(*texts) == [f"{CLAUDE}\n", environment("/srv")]
    assert found("".join(texts)) == [f"{CLAUDE}\n", environment("/srv")]
    assert found(*texts[:2], " ", environment("/a"))[-1] == environment("/a")


def test_behind_words_of_somebodys_own_no_mark_counts() -> None:
    assert found("[read_file for 'x'] Result:", CLAUDE) == []
    assert found(f"Result:\n{CLAUDE}") == []
    assert found(CLAUDE, "Look at this:", environment("/srv")) == [CLAUDE]
    assert found(f"{REMINDER} Result:", CLAUDE) == []


def test_what_tools_returned_and_what_others_say_holds_none() -> None:
    assert found(CLAUDE, answers=("a",), passed_on=(0,)) == []
    assert found(environment("/srv"), CLAUDE, answers=("a",), passed_on=(0,)) == [CLAUDE]
    assert found(CLAUDE, kind=Kind.RESULT) == []
    assert found("r", CLAUDE, kind=Kind.RESULT, beside=(1,)) == [CLAUDE]
    for kind in (Kind.ASSISTANT, Kind.INSTRUCTIONS, Kind.OTHER):
        assert found(CLAUDE, kind=kind) == []


def test_a_reminder_of_what_the_user_typed_while_the_assistant_worked_is_his() -> None:
    typed = (
        "<system-reminder>\nThe user sent the following message:\nUse tabs.\n\nPlease address this message and "
        "continue with your tasks.\n</system-reminder>"
    )
    assert not is_client_text((typed,))
    assert [text.strip() for text in without_context((CLAUDE, typed))] == ["Use tabs."]
    assert found(CLAUDE, typed, environment("/srv")) == [CLAUDE]
    assert is_client_text((f"{REMINDER}\n{typed}",)), "behind another reminder a page may say so"


@given(st.lists(st.sampled_from([CLAUDE, REMINDER, environment("/a"), "x", " ", "<rules>", "</rules>"]), max_size=8))
def test_what_is_found_stands_there_letter_by_letter(texts: list[str]) -> None:
    for block in blocks_in(user(*texts), 0):
        assert block.text in texts[block.place]


# Views

TALK = holding(
    conversation(
        user(CLAUDE, "Find the leak."),
        message("assistant", "Yes."),
        user(environment("/old"), kind=Kind.CLIENT),
        *turns(2, 30),
        user(environment("/new"), kind=Kind.CLIENT),
        *turns(2, 30),
        user(environment("/last"), kind=Kind.CLIENT),
        message("user", "And now?"),
    )
)


def over(*chunks: object, talk: Conversation = TALK, covered: int = 0) -> View:
    return build_view(talk, Path(chunks, covered, sum(each.tokens for each in chunks)))  # type: ignore[attr-defined, arg-type]


def test_the_newest_of_each_kind_that_is_left_out_is_said_again_before_the_summaries() -> None:
    view = over(chunk(TALK, 0, 8), covered=8)
    [note] = noted(view)
    assert isinstance(view.parts[0], Note)
    assert CLAUDE in note
    assert environment("/new") in note
    assert environment("/old") not in note
    assert environment("/last") not in note
    assert view.tokens == sum(
        part.tokens for part in view.parts if isinstance(part, Note)
    ) + 20 + TALK.transcript.tokens(8)
    assert problems(TALK, view, 1_000) == []
    assert coverage_of(TALK, view)[1] == {"kind": "client_instructions", "tokens": cost(user(note))}


def test_of_a_block_that_may_name_only_what_changed_the_newest_of_each_member_is_said_again() -> None:
    members = ("<cwd>/srv</cwd><shell>zsh</shell>", "<sandbox_mode>a</sandbox_mode>", "<sandbox_mode>b</sandbox_mode>")
    begun, first, second = (f"<environment_context>{each}</environment_context>" for each in members)
    folder, rules = environment("/a"), ("<rules><cwd>1</cwd></rules>", "<rules>2</rules>")
    talk = holding(conversation(*map(user, (begun, first, second, folder, *rules, "Go on."))))
    said = [[block.text for block in talk.client_context.carry_over(reach, ()).blocks] for reach in range(1, 7)]
    assert said[:3] == [[begun], [begun, first], [begun, second]]
    assert said[3:] == [[begun, second, folder], [begun, second, folder, rules[0]], [begun, second, folder, rules[1]]]
    assert talk.client_context.most_tokens(2, 3, ()) == talk.client_context.carry_over(3, ()).tokens


def test_an_older_block_is_paid_for_where_the_newest_stands_behind_what_is_left_out() -> None:
    """The message with the newest one stays; with what is before it left out, the older one has to be said again."""
    said = (user(environment("/old " * 20)), *turns(6, 30), user(environment("/new")), *turns(2, 30), user("Go on."))
    talk = holding(conversation(*said).with_pins((13,)))
    for limit in range(200, whole(talk).tokens, 7):
        assert prune(talk, whole(talk), limit, limit, cost, stub=False).tokens <= limit


def test_over_its_room_the_more_important_comes_first_and_the_rest_is_named() -> None:
    rules = "<rules>Be kind to the house.</rules>"
    messages = (user(environment("/srv")), user(CLAUDE), user(rules), *turns(6, 30))
    for room, said in ((1_000, {"/srv", "Context", "house"}), (50, {"Context", "/srv"}), (45, {"Context"}), (5, set())):
        talk = holding(conversation(*messages), room)
        again = carried_context(talk, over(chunk(talk, 0, 5), talk=talk, covered=5).parts)
        names = {environment("/srv"): "/srv", CLAUDE: "Context", rules: "house"}
        assert {names[block.text] for block in again.blocks} == said, room
        assert {names[block.text] for block in again.left_out} == set(names.values()) - said
        assert again.tokens <= room
        assert problems(talk, over(chunk(talk, 0, 5), talk=talk, covered=5), 1_000) == []


def test_a_decision_says_what_there_was_no_room_for() -> None:
    large = f"{CLAUDE_CONTEXT}{words(200)}</system-reminder>"
    talk = conversation(user(large, "Find the leak."), *turns(20, 40), message("user", "And now?"))
    made = chunk(talk, 0, 31)
    case = replace(initial_state(talk, Policy(), budget(1_000), cost, ()), chunks=(made,))
    decision = settle(case)
    assert decision.status == "summarized"
    assert decision.reason is not None
    assert decision.reason.startswith("client_instructions_too_long: <system-reminder> As you answer")
    assert "tokens)" in decision.reason
    small = conversation(user(CLAUDE, "Find the leak."), *turns(20, 40), message("user", "And now?"))
    fitting = settle(replace(initial_state(small, Policy(), budget(1_000), cost, ()), chunks=(chunk(small, 0, 31),)))
    assert fitting.reason is None
    assert fitting.view is not None
    assert CLAUDE in noted(fitting.view)[0]


def test_a_summariser_is_not_shown_what_is_said_again() -> None:
    again = carried_context(TALK, over(chunk(TALK, 0, 8), covered=8).parts)
    first, second = TALK.transcript.messages[:2]
    assert TALK.client_context.without_repeated(first, 0, again).texts == (CARRIED_OVER, "Find the leak.")
    assert TALK.client_context.without_repeated(second, 1, again) is second
    tight = holding(conversation(*TALK.transcript.messages), room=3)
    left = carried_context(tight, over(chunk(tight, 0, 8), talk=tight, covered=8).parts)
    assert tight.client_context.without_repeated(first, 0, left) is first


# Results in one message with the user's words


def asked() -> Conversation:
    """A question that stands in one message with the result before it: message 2."""
    both = user(words(500, "row"), "And the second?", answers=("a",), passed_on=(0,))
    messages = (message("user", "Read both."), message("assistant", calls=["a"], tokens=3), both)
    costs = [count_of(each) for each in messages]
    question = count_of(messages[2].without_results)
    return Conversation(messages, IDENTITY, "tenant", lambda: Costs(costs, 0, question), 1 << 40)


def count_of(each: Message) -> int:
    return cost(each) or 3


def test_an_own_word_less_is_a_changed_question() -> None:
    talk = asked()
    parts: tuple[Part, ...] = (Verbatim(0, 2), Altered(2, ("row", "And the?"), 3, "shortened"))
    assert problems(talk, View(parts, 3), 100) == [Code.LAST_USER_MESSAGE_CHANGED]


def test_what_is_too_large_to_stand_for_good_is_fitted_as_well() -> None:
    large = f"{CLAUDE_CONTEXT}{words(2_000)}</system-reminder>"
    talk = holding(conversation(user(large), *turns(1), message("user", "q")), room=100)
    [cut] = [part for part in fit(talk, whole(talk), 500, cost).parts if isinstance(part, Altered)]
    assert "characters in all, shortened" in cut.texts[0]
