"""Ties: a provider that takes a thought back only behind the very prompt it was made behind refuses nothing."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.history.messages import Message
from app.core.view.ties import tie, tied_places
from app.core.view.view import Altered, Carried, Conversation, Note, Part, Pinned, Pruned, Summary, Verbatim, View
from tests.unit.conversations import chunk, conversation, cost, message

Sent = tuple[tuple[str, str | None], ...]
"""What a provider reads: what each message says, and whose thought it holds."""


class StrictProvider:
    """Remembers behind what each of its answers was thought."""

    def __init__(self) -> None:
        self.thought: dict[str, Sent] = {}

    def read(self, payload: Sent, *, drops: bool) -> Sent:
        """The prompt as the model sees it. Fails where a thought is tied to something else, and may not be dropped."""
        prompt: list[tuple[str, str | None]] = []
        for said, thought in payload:
            fits = thought is not None and self.thought[thought] == tuple(prompt)
            assert fits or thought is None or drops
            prompt.append((said, thought if fits else None))
        return tuple(prompt)


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


@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=6), PLANS, st.lists(st.integers(0, 5), min_size=30, max_size=40)
)
def test_no_thought_is_ever_sent_behind_another_prompt(
    steps: list[int], plans: list[tuple[int, str]], changes: list[int]
) -> None:
    """Whatever is done to the history from one request to the next, and whoever remembers the prints."""
    messages = talk(steps)
    provider, prints = StrictProvider(), dict[bytes, frozenset[bytes]]()
    requests = [end for end in range(2, len(messages)) if messages[end].tied]
    for number, end in enumerate(requests):
        talked = conversation(*messages[:end])
        wanted = view_of(talked, *plans[changes[number % len(changes)] % len(plans)])
        view, news = tie(talked, wanted, prints, cost)
        place = talked.chain[len(talked.transcript)]
        if news is not None:
            prints[place] = prints.get(place, frozenset()) | {news}
        shown = view or whole(talked)
        provider.thought[messages[end].text] = provider.read(payload(talked, shown), drops=shown.drops)


def test_behind_a_history_as_it_came_every_thought_stays_and_nothing_is_remembered() -> None:
    talked = conversation(*talk([1, 1]))
    assert tie(talked, None, {}, cost) == (None, None)


def test_what_is_sent_only_grows_until_something_else_is_done_to_it() -> None:
    messages, prints = talk([1, 1, 1, 1]), dict[bytes, frozenset[bytes]]()
    provider, before = StrictProvider(), tuple[tuple[str, str | None], ...]()
    for end in (end for end in range(2, 7) if messages[end].tied):
        provider.thought[messages[end].text] = payload(
            conversation(*messages[:end]), whole(conversation(*messages[:end]))
        )
    for end in (end for end in range(7, len(messages)) if messages[end].tied):
        talked = conversation(*messages[:end])
        view, news = tie(talked, view_of(talked, 4, "summary"), prints, cost)
        assert view is not None
        assert news is not None
        prints[talked.chain[len(talked.transcript)]] = frozenset({news})
        now = provider.thought[messages[end].text] = provider.read(payload(talked, view), drops=view.drops)
        assert now[: len(before)] == before
        before = now
        assert all(4 <= index < 7 for index in view.untied)


def test_thoughts_of_turns_that_are_over_go_at_a_compaction_and_those_under_way_are_for_the_provider_to_drop() -> None:
    talked = conversation(*talk([0, 1, 1])[:-1])
    view, _ = tie(talked, view_of(talked, 2, "summary"), {}, cost)
    assert view is not None
    tied = [index for index, each in enumerate(talked.transcript.messages) if each.tied]
    assert view.untied == {index for index in tied if 2 <= index < talked.transcript.last_user}
    assert view.drops
    assert view.actions == ("summarized", "thinking_removed", "thinking_dropped")


def test_a_thought_that_may_be_of_two_prompts_is_left_out() -> None:
    """A history that was sent behind a summary, and once more as it is: nobody knows which answer the client kept."""
    messages = talk([0, 0])
    asked, goes_on = conversation(*messages[:2]), conversation(*messages[:-1])
    place = asked.chain[1]
    _, summarised = tie(asked, view_of(asked, 0, "shortened"), {}, cost)
    assert summarised is not None
    _, plain = tie(asked, None, {place: frozenset({summarised})}, cost)
    assert plain is not None
    assert tie(goes_on, None, {place: frozenset({plain})}, cost)[0] is None
    view, _ = tie(goes_on, None, {place: frozenset({plain, summarised})}, cost)
    assert view is not None
    assert view.actions == ("thinking_removed",)


def test_what_leaves_its_thoughts_costs_so_much_less() -> None:
    talked = conversation(*talk([0, 0])[:-1])
    place = tied_places(talked)[0]
    counted = lambda one: len(" ".join((*one.texts, *one.thoughts)).split())  # noqa: E731
    view, _ = tie(talked, whole(talked), {place: frozenset({b"other"})}, counted)
    assert view is not None
    assert whole(talked).tokens - view.tokens == 5


def test_what_went_without_its_thoughts_before_stays_so_and_costs_nothing_twice() -> None:
    talked = conversation(*talk([1, 0]))
    parts = (Verbatim(0, len(talked.transcript)),)
    plain, _ = tie(talked, View(parts, 50), {}, cost)
    assert plain == View(parts, 50)
    tied, print_ = tie(talked, View(parts, 50, untied=frozenset({5})), {}, cost)
    assert tied == View(parts, 50, untied=frozenset({5}))
    assert print_ is not None
