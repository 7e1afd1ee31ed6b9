"""What stands beside a summary's text: lists that are merged without a model, up to their room."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from app.compaction.chunk_builder import ChunkBuilder, SummaryCall
from app.compaction.chunks import SummaryChunk, UserWords
from app.compaction.plan import SummaryOptions
from app.compaction.prompts import chunk_beside, chunk_text
from app.compaction.records import (
    Record,
    fit_records,
    merge_ranked,
    merge_records,
    parse_record,
)
from app.compaction.view import Conversation
from app.tokens.estimate import note_tokens
from tests.unit.conversations import (
    SETTINGS,
    budget,
    chunk,
    conversation,
    count,
    message,
    notes,
    plan_compaction,
    play,
    sure,
    turns,
)

BUDGET = budget(2_000, summary=100, fold=150)
KEEPING = replace(SETTINGS, values_share=0.2, user_words=True, folds_in=False)


def records(*lines: str) -> list[Record]:
    return [*map(parse_record, lines)]


def merged(*lists: tuple[str, ...]) -> list[str]:
    return [record.line for record in merge_ranked([records(*lines) for lines in lists])]


def test_thing_that_several_hold_is_one_record_brought_up_to_date_a_field_each() -> None:
    older = ("order W500: status open; item A-1", "item B-2")
    assert merged(older, ("order W500: parcel P-9; status paid",)) == [
        "order W500: parcel P-9",
        "order W500: status paid (before: open)",
        "order W500: item A-1",
        "item B-2",
    ]


def with_chunks(*made: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Conversation, list[SummaryChunk]]:
    """A conversation whose chunks are due to be folded, with these values and words of the user."""
    talk = conversation(*turns(len(made) + 8, size=100))
    return talk, [
        chunk(talk, 2 * n, 2 * n + 2, id=f"c{n}", tokens=90, values=values, user_words=entries(n, *said))
        for n, (values, said) in enumerate(made)
    ]


def entries(turn: int, *said: str) -> tuple[UserWords, ...]:
    return tuple(UserWords(turn, text) for text in said)


def folded(talk: Conversation, stored: list[SummaryChunk], settings: SummaryOptions = KEEPING) -> SummaryChunk:
    plan = sure(plan_compaction(talk, stored, BUDGET, settings, "additive"))
    _, done = play(ChunkBuilder(talk, "conv", plan, BUDGET, settings, count), *[notes(30)] * 9)
    return next(made for made in done.made if made.level)


def test_values_and_words_are_part_of_a_chunks_address_and_their_absence_is_not() -> None:
    ids = [
        folded(*with_chunks((values, said), *[((), ())] * 3), replace(KEEPING, user_words=bool(said))).id
        for values, said in (((), ()), (("A-1",), ()), ((), ("Never A.",)))
    ]
    assert len(set(ids)) == 3
    assert ids[0] == "chk_9898401b8b1b90611aec0afad687654c"  # The same on every replica and in every release.


def test_a_chunk_of_messages_holds_their_values_within_its_share_and_its_cap() -> None:
    said = [message("user", " ".join(f"ORD-{turn}{n}" for n in range(40)) + f" {turn}") for turn in range(20)]
    talk = conversation(*said, message("user", "and now?"))
    plan = sure(plan_compaction(talk, (), BUDGET, KEEPING, "additive"))
    effects, done = play(ChunkBuilder(talk, "conv", plan, BUDGET, KEEPING, count), *[notes(30)] * 9)
    asked = [effect for effect in effects if isinstance(effect, SummaryCall)]
    assert [effect.values for effect in asked] == [made.values for made in done.made]
    for made, effect in zip(done.made, asked, strict=True):
        assert 0 < sum(count(value) + 1 for value in made.values) <= BUDGET.summary // 5
        assert made.tokens == note_tokens(chunk_text(made), count)
        assert effect.request.max_tokens + count(chunk_beside(replace(made, user_words=()))) <= BUDGET.summary
    without = replace(KEEPING, values_share=0.0)
    _, done = play(ChunkBuilder(talk, "conv", plan, BUDGET, without, count), *[notes(30)] * 9)
    assert {made.values for made in done.made} == {()}


VALUES = st.lists(st.text("ABCDEF-0123456789", min_size=3, max_size=8), max_size=12).map(tuple)


@given(st.lists(VALUES, min_size=2, max_size=8), st.data())
def test_values_survive_any_sequence_of_folds_up_to_their_room(
    leaves: list[tuple[str, ...]], data: st.DataObject
) -> None:
    """Whatever is folded with what, nothing is lost while there is room."""
    room = data.draw(st.integers(0, 200))
    level = list(leaves)
    while len(level) > 1:
        at = data.draw(st.integers(0, len(level) - 2))
        values = fit_records(merge_ranked([records(*level[at]), records(*level[at + 1])]), room, len)
        assert sum(len(value) + 1 for value in values) <= room
        level[at : at + 2] = [values]
    said = {value for leaf in leaves for value in leaf}
    assert {*level[0]} <= said
    if sum(len(value) + 1 for value in said) <= room:
        assert {*level[0]} == {*merge_records(records(*said), Record.joined)}
