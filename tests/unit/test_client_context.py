"""Client context: blocks that a client puts into user messages are found, and repeated where they are omitted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.fallback import settle
from app.compaction.mask import MaskPolicy, Masks
from app.compaction.planning_state import Path, build_view, initial_state, usable
from app.compaction.policy import Policy
from app.compaction.trim import fit, prune
from app.compaction.verify import coverage_of, problems
from app.compaction.view import (
    Altered,
    Conversation,
    Note,
    Part,
    Pruned,
    Verbatim,
    View,
    carried_context,
    whole,
    with_carried_context,
)
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
from tests.unit.conversations import IDENTITY, budget, chunk, conversation, cost, message, turns, words

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


def result(*texts: str, own: Sequence[int] = (), call: str = "a") -> Message:
    """Results and the user's own words in one message."""
    passed_on = tuple(place for place in range(len(texts)) if place not in own)
    return user(*texts, answers=(call,), passed_on=passed_on)


def found(*texts: str, kind: Kind = Kind.USER, **members: object) -> list[str]:
    return [block.text for block in blocks_in(user(*texts, kind=kind, **members), 0)]


def holding(talk: Conversation, room: int = 1_000) -> Conversation:
    return talk.with_client_context(ClientContext(talk.transcript, room, cost))


def noted(view: View) -> list[str]:
    return [part.text for part in view.parts if isinstance(part, Note) and part.kind == "client_instructions"]


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


def test_only_blocks_and_reminders_are_the_programs() -> None:
    assert is_client_text((REMINDER, "", CLAUDE))
    assert not is_client_text(())
    assert not is_client_text((" ",))
    assert not is_client_text((REMINDER, "What now?"))


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


def test_what_follows_changes_nothing_of_the_note() -> None:
    longer = holding(
        conversation(*TALK.transcript.messages, user(environment("/later"), "Go on."), message("user", "q"))
    )
    assert noted(over(chunk(longer, 0, 8), talk=longer, covered=8)) == noted(over(chunk(TALK, 0, 8), covered=8))


def test_what_stands_anyway_is_not_said_again() -> None:
    assert noted(whole(TALK)) == []
    [note] = noted(over(chunk(TALK, 0, 8, carried=(0,)), covered=8))
    assert CLAUDE not in note
    assert noted(over(chunk(TALK, 0, 2, carried=(0,)), covered=2)) == []
    pinned = TALK.with_pins((0,))
    assert CLAUDE not in noted(over(chunk(pinned, 0, 8), talk=pinned, covered=8))[0]


def test_a_view_without_the_note_is_found_and_is_given_it() -> None:
    view = over(chunk(TALK, 0, 8), covered=8)
    without = replace(view, parts=view.parts[1:])
    assert problems(TALK, without, 1_000) == [Code.CLIENT_INSTRUCTIONS_MISSING]
    again = with_carried_context(TALK, replace(without, tokens=view.tokens - carried_context(TALK, view.parts).tokens))
    assert again == view
    assert with_carried_context(TALK, view) is view
    stale = replace(view, parts=(view.parts[0], Verbatim(0, 14)))
    assert noted(with_carried_context(TALK, stale)) == []


def test_what_pruning_leaves_out_is_said_again_and_paid_for() -> None:
    view = prune(TALK, whole(TALK), 140, 140, cost, stub=False)
    assert any(isinstance(part, Pruned) for part in view.parts)
    assert CLAUDE in noted(view)[0]
    assert view.tokens <= 140
    assert problems(TALK, view, 140) == []
    assert prune(TALK, whole(TALK), 1_000, 1_000, cost, stub=False) == whole(TALK)
    last = holding(conversation(message("user", words(9))))
    assert prune(last, whole(last), 5, 5, cost, stub=False) == whole(last)


def test_an_older_block_is_paid_for_where_the_newest_stands_behind_what_is_left_out() -> None:
    """The message with the newest one stays; with what is before it left out, the older one has to be said again."""
    said = (user(environment("/old " * 20)), *turns(6, 30), user(environment("/new")), *turns(2, 30), user("Go on."))
    talk = holding(conversation(*said).with_pins((13,)))
    for limit in range(200, whole(talk).tokens, 7):
        assert prune(talk, whole(talk), limit, limit, cost, stub=False).tokens <= limit


def test_the_largest_note_is_looked_for_between_what_is_left_out_and_what_may_be() -> None:
    said = (user(environment("/a " * 9)), user(environment("/b " * 3)), user(environment("/c")), user("Go on."))
    blocks = holding(conversation(*said)).client_context
    sizes = [blocks.carry_over(reach, ()).tokens for reach in range(4)]
    assert sizes[0] < sizes[3] < sizes[2] < sizes[1]
    assert [blocks.most_tokens(0, reach, ()) for reach in range(4)] == [0, sizes[1], sizes[1], sizes[1]]
    assert [blocks.most_tokens(least, 3, ()) for least in (1, 2, 3)] == sizes[1:]


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


def test_fitting_spares_what_stands_for_good() -> None:
    rules = f"{CLAUDE_CONTEXT}{words(60, 'kindness')}</system-reminder>"
    talk = holding(conversation(user(rules, words(2_000, "page")), *turns(1), message("user", "q")), room=200)
    [cut] = [part for part in fit(talk, whole(talk), 500, cost).parts if isinstance(part, Altered)]
    assert cut.texts[0] == rules
    assert len(cut.texts[1]) < 2_000
    assert problems(talk, fit(talk, whole(talk), 500, cost), 2_000) == []


def test_a_summariser_is_not_shown_what_is_said_again() -> None:
    again = carried_context(TALK, over(chunk(TALK, 0, 8), covered=8).parts)
    first, second = TALK.transcript.messages[:2]
    assert TALK.client_context.without_repeated(first, 0, again).texts == (CARRIED_OVER, "Find the leak.")
    assert TALK.client_context.without_repeated(second, 1, again) is second
    tight = holding(conversation(*TALK.transcript.messages), room=3)
    left = carried_context(tight, over(chunk(tight, 0, 8), talk=tight, covered=8).parts)
    assert tight.client_context.without_repeated(first, 0, left) is first


def test_a_conversation_of_which_nothing_is_set_says_nothing_again() -> None:
    plain = conversation(*TALK.transcript.messages)
    assert noted(over(chunk(plain, 0, 8), talk=plain, covered=8)) == []


# Results in one message with the user's words


def asked(page: str = words(500, "row"), own: str = "And the second?") -> Conversation:
    """A question that stands in one message with the result before it: message 2."""
    messages = (message("user", "Read both."), message("assistant", calls=["a"], tokens=3), result(page, own, own=[1]))
    costs = [count_of(each) for each in messages]
    question = count_of(messages[2].without_results)
    return Conversation(messages, IDENTITY, "tenant", lambda: Costs(costs, 0, question), 1 << 40)


def count_of(each: Message) -> int:
    return cost(each) or 3


def test_the_floor_counts_the_users_own_words_alone() -> None:
    talk = asked()
    assert talk.floor == 3
    assert talk.whole_floor == 506
    plain = conversation(message("user", "Read both."))
    assert plain.floor == plain.whole_floor == 2


def test_results_in_the_last_user_message_are_fitted_and_his_words_are_not() -> None:
    talk = asked(own=f"And {words(400, 'the second')}?")
    view = fit(talk, whole(talk), 300, cost)
    [cut] = [part for part in view.parts if isinstance(part, Altered)]
    assert cut.index == 2
    assert cut.texts[1] == talk.transcript.messages[2].texts[1]
    assert "characters in all, shortened" in cut.texts[0]
    assert problems(talk, view, 2_000) == []


def test_an_own_word_less_is_a_changed_question() -> None:
    talk = asked()
    parts: tuple[Part, ...] = (Verbatim(0, 2), Altered(2, ("row", "And the?"), 3, "shortened"))
    assert problems(talk, View(parts, 3), 100) == [Code.LAST_USER_MESSAGE_CHANGED]


def test_pinned_results_stay_as_they_are() -> None:
    talk = asked().with_pins((2,))
    assert fit(talk, whole(talk), 300, cost) == whole(talk)
    assert talk.kept.whole == {0, 1, 2}
    assert asked().kept.whole == {0}, "the task, which the turn began with"
    assert asked().kept.messages == {0, 2}


def test_results_beside_words_and_reminders_are_masked_and_these_are_not() -> None:
    reminded = user(words(500, "row"), REMINDER, kind=Kind.RESULT, answers=("a",), beside=(1,))
    call, answer = message("assistant", calls=["a"], tokens=3), message("assistant", "I see.")
    for held, own in ((result(words(500, "row"), "Well?", own=[1]), "Well?"), (reminded, REMINDER)):
        talk = conversation(message("user", "Read."), call, held, answer, message("user", "q"))
        [(index, mask)] = Masks(talk.transcript, MaskPolicy(), cost).between(0, 4)
        assert (index, mask.texts[1]) == (2, own)
        assert "characters in all, shortened" in mask.texts[0]
    assert reminded.result_places == (0,)
    assert conversation(message("user", "q"), call, reminded).transcript.turn_starts == (0,)


def test_what_is_too_large_to_stand_for_good_is_fitted_as_well() -> None:
    large = f"{CLAUDE_CONTEXT}{words(2_000)}</system-reminder>"
    talk = holding(conversation(user(large), *turns(1), message("user", "q")), room=100)
    [cut] = [part for part in fit(talk, whole(talk), 500, cost).parts if isinstance(part, Altered)]
    assert "characters in all, shortened" in cut.texts[0]


def passages(turns: int, said: str = "Passages for question {}.") -> list[Message]:
    """A turn each with instructions for its question."""
    return [
        each
        for turn in range(turns)
        for each in (
            message("user", f"Question {turn}?"),
            message("system", f"{said.format(turn)} {words(40)}"),
            message("assistant", f"Answer {turn}."),
        )
    ]


def test_only_the_newest_of_the_same_beginning_stays_where_they_take_over_half_of_the_limit() -> None:
    talk = conversation(message("system", "Be kind."), *passages(3), message("system", "Another rule."), *passages(1))
    instructions = sum(map(talk.transcript.tokens_of, talk.transcript.messages.instruction_places))
    assert talk.with_newest_instructions(2 * instructions) is talk
    released = talk.with_newest_instructions(2 * instructions - 1)
    assert released.superseded == {1, 4, 7}
    assert released.transcript.messages.instruction_places == (9, 11)
    assert all(released.transcript.messages[place].sealed for place in released.superseded), "quoted nowhere"
    assert (released.tokens, released.chain.digests) == (talk.tokens, talk.chain.digests)
    assert released.floor < talk.floor


def test_instructions_that_begin_differently_stay() -> None:
    talk = conversation(*passages(1), *passages(1, "The house rules, part {}."))
    assert talk.with_newest_instructions(1) is talk


def test_a_summary_that_carries_superseded_instructions_is_not_used() -> None:
    talk = conversation(*passages(4))
    released = talk.with_newest_instructions(1)
    carrying, plain = chunk(talk, 0, 6, carried=(1, 4)), chunk(talk, 0, 6)
    assert [found[2] for found in usable(talk, [carrying])] == [carrying]
    assert [found[2] for found in usable(released, [carrying, plain])] == [plain]
    assert {released.transcript.messages[place].kind for place in (1, 4, 7)} == {Kind.OTHER}
