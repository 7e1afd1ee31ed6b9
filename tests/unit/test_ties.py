"""Ties: a provider that takes a thought back only behind the very prompt it was made behind refuses nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.history.messages import Message
from app.core.view.ties import Tied, tie, tie_refused, tied_places
from app.core.view.view import Altered, Carried, Conversation, Note, Part, Pinned, Pruned, Summary, Verbatim, View
from tests.unit.conversations import chunk, conversation, cost, message, sure

Sent = tuple[tuple[str, str | None], ...]
"""What a provider reads: what each message says, and whose thought it holds."""


class StrictProvider:
    """Remembers behind what each of its answers was thought."""

    def __init__(self, *, as_sent: bool = False) -> None:
        """`as_sent`: a thought is tied to the prompt with what was dropped of it, else to what the model saw."""
        self.as_sent = as_sent
        self.thought: dict[str, Sent] = {}

    def refuses(self, payload: Sent) -> bool:
        return any(thought not in kept for _, thought in payload if thought for kept in [self._fitting(payload)])

    def read(self, payload: Sent, *, drops: bool) -> Sent:
        """What an answer's thought is tied to. Fails where one is tied to something else, and may not be dropped."""
        assert drops or not self.refuses(payload)
        kept = self._fitting(payload)
        return (
            payload
            if self.as_sent
            else tuple((said, thought if thought in kept else None) for said, thought in payload)
        )

    def _fitting(self, payload: Sent) -> set[str]:
        """The thoughts that stand behind what they are tied to."""
        prompt: list[tuple[str, str | None]] = []
        fitting: set[str] = set()
        for said, thought in payload:
            fits = thought is not None and self.thought[thought] == tuple(prompt)
            if fits and thought is not None:
                fitting.add(thought)
            prompt.append((said, thought if fits or self.as_sent else None))
        return fitting


Prints = dict[bytes, frozenset[bytes]]


def keep(prints: Prints, tied: Tied) -> View | None:
    """As the shell does, before it sends the view."""
    for place, print_ in tied.news:
        prints[place] = prints.get(place, frozenset()) | {print_}
    return tied.view


def talk(steps: list[int]) -> list[Message]:
    """A turn with so many calls each, and an answer; every message of the assistant with a thought."""
    messages = [message("system", "be kind")]
    for turn, calls in enumerate(steps):
        messages.append(message("user", f"question {turn}"))
        for call in range(calls):
            id_ = f"{turn}.{call}"
            messages += [thinking(f"calling {id_}", (id_,)), message("tool", f"result {id_}", answers=id_)]
        messages.append(thinking(f"answer {turn}"))
    return messages


def thinking(text: str, calls: tuple[str, ...] = ()) -> Message:
    return replace(message("assistant", text, calls=calls), tied=True, thoughts=("a thought of four words",))


def payload(talked: Conversation, view: View) -> Sent:
    """As a format renders it."""
    messages = talked.transcript.messages
    sent: list[tuple[str, str | None]] = []

    def add(*indexes: int, said: str | None = None) -> None:
        for index in indexes:
            holds = messages[index].tied and index not in view.untied
            sent.append((said or messages[index].text, messages[index].text if holds else None))

    for part in view.parts:
        match part:
            case Summary(chunk):
                sent.append((f"summary {chunk.id}", None))
            case Note(_, text):
                sent.append((text, None))
            case Verbatim(start, stop) | Pinned(start, stop):
                add(*range(start, stop))
            case Carried(index):
                add(index)
            case Altered(index, texts):
                add(index, said="".join(texts))
            case Pruned():
                pass
    return tuple(sent)


def whole(talked: Conversation) -> View:
    return View((Verbatim(0, len(talked.transcript)),), talked.tokens)


def view_of(talked: Conversation, cut: int, kind: str) -> View | None:
    """One of the things that may be done to a history, or None."""
    size = len(talked.transcript)
    cut = min(cut, size - 1)
    parts: tuple[Part, ...]
    match kind:
        case "summary":
            parts = (Summary(chunk(talked, 0, cut)), Verbatim(cut, size)) if cut else (Verbatim(0, size),)
        case "shortened":
            parts = (Verbatim(0, cut), Altered(cut, ("short",), 1, "masked"), Verbatim(cut + 1, size))
        case "pruned":
            parts = (Pruned(0, cut), Verbatim(cut, size))
        case "pinned":
            parts = (
                Pruned(0, cut),
                Pinned(0, 1),
                Note("pinned_text", "note", 1),
                Carried(cut),
                Verbatim(cut + 1, size),
            )
        case _:
            return None
    return View(parts, talked.tokens)


KINDS = st.sampled_from(["whole", "summary", "shortened", "pruned", "pinned"])
PLANS = st.lists(st.tuples(st.integers(0, 12), KINDS), min_size=1, max_size=6)


@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    PLANS,
    st.lists(st.integers(0, 5), min_size=30, max_size=40),
    st.lists(st.integers(0, 9), min_size=30, max_size=40),
    st.booleans(),
)
def test_no_thought_is_ever_sent_behind_another_prompt(
    steps: list[int], plans: list[tuple[int, str]], changes: list[int], moods: list[int], as_sent: bool
) -> None:
    """Whatever is done to the history from one request to the next, and whichever prompt a provider signs."""
    messages = talk(steps)
    provider, prints = StrictProvider(as_sent=as_sent), Prints()
    requests = [end for end in range(2, len(messages)) if messages[end].tied]
    for number, end in enumerate(requests):
        talked = conversation(*messages[:end])
        wanted = view_of(talked, *plans[changes[number % len(changes)] % len(plans)])
        thinks = moods[number % len(moods)] > 0
        tied = tie(talked, wanted, prints, cost, thinks=thinks)
        shown = keep(prints, tied) or wanted or whole(talked)
        assert thinks or not shown.drops
        read = provider.read(payload(talked, shown), drops=shown.drops)
        if thinks:
            provider.thought[messages[end].text] = read
        else:
            messages[end] = replace(messages[end], tied=False, thoughts=())


@settings(max_examples=100)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=6), st.integers(0, 20), st.integers(0, 12), st.booleans())
def test_what_was_refused_once_is_not_refused_again_until_something_else_is_done_to_the_history(
    steps: list[int], lost_at: int, cut: int, as_sent: bool
) -> None:
    """The prints of a view were lost: nobody knows that its thoughts do not fit the history as it is."""
    messages = talk(steps)
    provider, prints = StrictProvider(as_sent=as_sent), Prints()
    requests = [end for end in range(2, len(messages)) if messages[end].tied]
    refused = 0
    for number, end in enumerate(requests):
        talked = conversation(*messages[:end])
        if number == lost_at:
            prints.clear()
        wanted = view_of(talked, cut, "summary") if number < lost_at else None
        shown = keep(prints, tie(talked, wanted, prints, cost)) or wanted or whole(talked)
        if not shown.drops and provider.refuses(payload(talked, shown)):
            refused += 1
            shown = keep(prints, tie_refused(talked, shown, cost)) or shown
            assert shown.drops
        provider.thought[messages[end].text] = provider.read(payload(talked, shown), drops=shown.drops)
    assert refused <= 1


def test_where_the_model_is_not_to_think_none_of_what_was_refused_is_sent() -> None:
    messages = talk([1, 1])
    talked, prints = conversation(*messages[:-1]), Prints()
    view = sure(keep(prints, tie_refused(talked, None, cost, thinks=False)))
    assert not view.drops
    assert all(thought is None for _, thought in payload(talked, view))
    assert not prints


def test_where_no_thought_was_sent_nothing_can_be_dropped() -> None:
    talked = conversation(message("user", "hello"))
    assert tie_refused(talked, None, cost) == Tied(None)


def test_what_was_marked_is_left_out_while_the_model_is_not_to_think() -> None:
    messages, prints = talk([2, 1]), Prints()
    talked = conversation(*messages[:-1])
    keep(prints, tie_refused(talked, None, cost))
    view = sure(keep(prints, tie(talked, None, prints, cost, thinks=False)))
    assert view.actions == ("thinking_removed",)
    assert all(thought is None for _, thought in payload(talked, view))


def test_behind_a_history_as_it_came_every_thought_stays_and_nothing_is_remembered() -> None:
    talked = conversation(*talk([1, 1]))
    assert tie(talked, None, {}, cost) == Tied(None)


def test_what_is_sent_only_grows_until_something_else_is_done_to_it() -> None:
    messages, prints = talk([1, 1, 1, 1]), Prints()
    provider, before = StrictProvider(), Sent()
    for end in (end for end in range(2, 7) if messages[end].tied):
        provider.thought[messages[end].text] = payload(
            conversation(*messages[:end]), whole(conversation(*messages[:end]))
        )
    for end in (end for end in range(7, len(messages)) if messages[end].tied):
        talked = conversation(*messages[:end])
        view = sure(keep(prints, tie(talked, view_of(talked, 4, "summary"), prints, cost)))
        now = provider.thought[messages[end].text] = provider.read(payload(talked, view), drops=view.drops)
        assert now[: len(before)] == before
        before = now
        assert all(4 <= index < 7 for index in view.untied)


@pytest.mark.parametrize("as_sent", [False, True])
def test_after_a_compaction_in_mid_turn_everything_stays_as_it_is_sent_and_later_thoughts_fit(as_sent: bool) -> None:
    """Also in the turns to come: what was dropped is sent on, or what was thought behind it would go with it."""
    messages, prints = talk([4, 1, 1]), Prints()
    provider, before = StrictProvider(as_sent=as_sent), Sent()
    for end in (end for end in range(2, len(messages)) if messages[end].tied):
        talked = conversation(*messages[:end])
        wanted = view_of(talked, 4, "summary") if end > 6 else None
        view = keep(prints, tie(talked, wanted, prints, cost)) or whole(talked)
        sent = payload(talked, view)
        provider.thought[messages[end].text] = provider.read(sent, drops=view.drops)
        if end > 6:
            assert view.drops
            assert not view.untied
            assert sent[: len(before)] == before
            assert {thought for _, thought in sent if thought} - provider._fitting(sent) == {"calling 0.2"}
            before = sent


def test_a_mark_does_not_hold_behind_the_next_compaction() -> None:
    messages, prints = talk([4, 1]), Prints()
    talked = conversation(*messages[:-1])
    assert keep(prints, tie(talked, view_of(talked, 4, "summary"), prints, cost)) is not None
    view = sure(keep(prints, tie(talked, view_of(talked, 10, "summary"), prints, cost)))
    assert view.drops  # For the turn that is under way.
    over = conversation(*messages, message("user", "and now?"))
    view = sure(keep(prints, tie(over, view_of(over, 5, "summary"), prints, cost)))
    assert not view.drops
    assert view.untied


def test_thoughts_of_turns_that_are_over_go_at_a_compaction_and_those_under_way_are_for_the_provider_to_drop() -> None:
    talked = conversation(*talk([0, 1, 1])[:-1])
    view = sure(tie(talked, view_of(talked, 2, "summary"), {}, cost).view)
    tied = [index for index, each in enumerate(talked.transcript.messages) if each.tied]
    assert view.untied == {index for index in tied if 2 <= index < talked.transcript.last_user}
    assert view.drops
    assert view.actions == ("summarized", "thinking_removed", "thinking_dropped")


def test_a_thought_that_may_be_of_two_prompts_is_left_out() -> None:
    """A history that was sent behind a summary, and once more as it is: nobody knows which answer the client kept."""
    messages = talk([0, 0])
    asked, goes_on = conversation(*messages[:2]), conversation(*messages[:-1])
    [(place, summarised)] = tie(asked, view_of(asked, 0, "shortened"), {}, cost).news
    [(_, plain)] = tie(asked, None, {place: frozenset({summarised})}, cost).news
    assert tie(goes_on, None, {place: frozenset({plain})}, cost).view is None
    view = sure(tie(goes_on, None, {place: frozenset({plain, summarised})}, cost).view)
    assert view.actions == ("thinking_removed",)


def test_what_leaves_its_thoughts_costs_so_much_less() -> None:
    talked = conversation(*talk([0, 0])[:-1])
    place = tied_places(talked)[0]
    counted = lambda one: len(" ".join((*one.texts, *one.thoughts)).split())  # noqa: E731
    view = sure(tie(talked, whole(talked), {place: frozenset({b"of another view."})}, counted).view)
    assert whole(talked).tokens - view.tokens == 5


def test_what_went_without_its_thoughts_before_stays_so_and_costs_nothing_twice() -> None:
    talked = conversation(*talk([1, 0]))
    parts = (Verbatim(0, len(talked.transcript)),)
    assert tie(talked, View(parts, 50), {}, cost).view == View(parts, 50)
    tied = tie(talked, View(parts, 50, untied=frozenset({5})), {}, cost)
    assert tied.view == View(parts, 50, untied=frozenset({5}))
    assert tied.news


@pytest.mark.parametrize("as_sent", [False, True])
def test_where_a_mark_was_lost_what_was_dropped_is_left_out_and_no_thought_made_behind_it_is_taken_to_fit(
    as_sent: bool,
) -> None:
    """It fits only where its provider signs what the model saw, and nobody knows."""
    messages, prints = talk([4, 1]), Prints()
    provider = StrictProvider(as_sent=as_sent)
    for end in (end for end in range(2, len(messages)) if messages[end].tied):
        talked = conversation(*messages[:end])
        wanted = view_of(talked, 4, "summary") if end > 6 else None
        view = keep(prints, tie(talked, wanted, prints, cost)) or whole(talked)
        prints = {place: frozenset(each for each in found if len(each) == 16) for place, found in prints.items()}
        provider.thought[messages[end].text] = provider.read(payload(talked, view), drops=view.drops)
