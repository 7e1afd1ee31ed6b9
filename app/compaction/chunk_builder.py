"""Chunk builder: drafts a summary chunk and its summary call, checks the answer, and makes the chunk from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import chain
from math import ceil
from sys import maxsize

from msgspec import Struct
from msgspec.structs import replace

from app.compaction import prompts
from app.compaction.budget import Budget
from app.compaction.chunks import Failure, SummaryChunk, UserWords
from app.compaction.exact_values import kept_share
from app.compaction.plan import (
    AIMED_SHARE,
    Plan,
    Span,
    SummaryOptions,
    is_shown,
    longest_within,
    quoted_tokens,
    released_by,
    replaced_tokens,
    shown_size,
    words_room,
)
from app.compaction.planning_state import Path, build_view
from app.compaction.prompts import SummaryRequest
from app.compaction.records import extract_records, fit_records, merge_ranked, merge_records, parse_record
from app.compaction.user_words import fitting_words, held_tokens, own_entries, quote_user_words
from app.compaction.verify import repair
from app.compaction.view import Altered, Conversation, Note, Part, Verbatim, View
from app.conversation.quoting import fence_of, marked, one_line, word
from app.conversation.reasons import Code, Reason, Reasons
from app.conversation.secrets import REMOVED, without_secrets
from app.conversation.wordings import read_wordings
from app.formats.spec import Ending, SummaryAnswer
from app.tokens.estimate import Count, note_tokens

WORDS_SHARE = 0.5
"""Maximum tokens of the user's words in a chunk, as a share of the tokens that the chunk replaces."""
LEAST_PART = 100
"""Minimum of `Draft.replaces`, in tokens, if a plan has several spans: a short span then still gets a summary."""

EDITED = "edited"
"""`prompt_version` of a chunk that a person edited."""

MINIMUM_TOKENS = 20
REPLACED_SHARE = 0.70
"""Maximum size of a summary as a share of the replaced tokens. A larger summary saves too little."""
MISCOUNT = 1.25
"""Factor by which Steno's count of an answer may exceed the output cap of the call, because tokenizers differ."""
LONGEST_REFUSAL = 100
"""Maximum tokens of a refusal. A longer text that begins like a refusal probably quotes the conversation."""
ECHOED = 80
"""Steno rejects an answer that begins by repeating the first `ECHOED` characters of the call's instructions."""
_THOUGHT = "think|thinking|reasoning"
REASONING = re.compile(
    rf"\s*<({_THOUGHT})>.*?(?:</\1>|\Z)|(?:[^<]++|<(?!/?(?:{_THOUGHT})>))*+</(?:{_THOUGHT})>[ \t]*(?:\n|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Reasoning before an answer. The opening tag may be missing. The closing tag may be missing if the answer was cut."""
REFUSAL = re.compile(
    rf"\W*(?:{'|'.join(chain.from_iterable(read_wordings(__package__, 'declined.toml')['refusals'].values()))})",
    re.IGNORECASE,
)
CALL = re.compile(r"<\|?(?:tool_calls?|function_calls?|function=|invoke)\b|\[TOOL_CALLS\]", re.IGNORECASE)
"""Start of a tool call that the provider did not parse."""
ERROR = re.compile(
    r'<(?:!doctype html|html)\b|\{\s*"(?:error"\s*:\s*[{"]|(?:type|object)"\s*:\s*"error")', re.IGNORECASE
)
"""Start of an error that a proxy or a provider returned as an answer."""


def visible_text(text: str) -> str:
    """Return an answer without the reasoning at its start."""
    found = REASONING.match(text)
    return text[found.end() if found else 0 :].strip()


def objection(
    answer: SummaryAnswer, tokens: int, at_most: int, replaces: int, asked: str, at_least: int = MINIMUM_TOKENS
) -> Reason | None:
    """Return the reason why an answer must not become a chunk, or None. `asked`: instructions of the call.

    The other numbers are in tokens of the estimate. `tokens`: size of the visible text. `at_most`: output cap of the
    call. `replaces`: size of the replaced text. `at_least`: minimum of `tokens`."""
    text = visible_text(answer.text)
    refused = tokens <= LONGEST_REFUSAL and REFUSAL.match(text.replace("\u2019", "'")) is not None
    # Short instructions may also occur in a good summary.
    echoed = len(asked) >= ECHOED and asked[:ECHOED] in text[: 2 * ECHOED]
    checks = (
        (answer.ending is Ending.CALLED or CALL.match(text) is not None, Reason(Code.SUMMARY_IS_A_TOOL_CALL)),
        (answer.ending is not Ending.FINISHED, Reason(Code.SUMMARY_NOT_FINISHED, word(answer.word))),
        (not text, Reason(Code.SUMMARY_EMPTY)),
        (ERROR.match(text) is not None, Reason(Code.SUMMARISER_ERROR_FRAME)),
        (refused or echoed, Reason(Code.SUMMARY_REFUSED)),
        (tokens < at_least, Reason(Code.SUMMARY_TOO_SHORT)),
        (tokens > MISCOUNT * at_most, Reason(Code.SUMMARY_TOO_LONG)),
        (tokens > REPLACED_SHARE * replaces, Reason(Code.SUMMARY_NOT_SMALLER)),
    )
    return next((reason for failed, reason in checks if failed), None)


class Draft(Struct, frozen=True):
    """Chunk without its text, and the input of its summary call."""

    chunk: SummaryChunk
    quoted: str
    stands_for: int
    """Tokens that the chunk replaces in a view."""
    prompt: str
    notes: tuple[str, ...]
    shown: View | None
    """View that the summariser reads; None if it reads the transcript `quoted`."""
    beside: tuple[str, ...]
    """Further texts for a call with a `shown` view: an additional rule, or the earlier summary."""
    aim: int
    """Requested maximum of the summary text, in tokens. The prompt asks for at most half as many words."""
    replaces: int
    """Tokens that the text replaces: `stands_for` less the tokens of values and user's words; see `LEAST_PART`."""
    least: int
    """Minimum tokens of the text."""


def _before(stop: int, parts: Iterable[Part]) -> Sequence[Part]:
    """Return the parts of a view before the message at `stop`. Replace altered messages, such as masked ones, by
    the client's originals. The provider may have cached the altered messages, but a summary of them would be poorer."""
    shown: list[Part] = []
    ends: list[int] = []
    for part in parts:
        match part:
            case Verbatim(start, end):
                shown.append(Verbatim(start, min(end, stop)))
                ends.append(min(end, stop))
            case Altered(index):
                shown.append(Verbatim(index, index + 1))
                ends.append(index + 1)
            case _:
                shown.append(part)
                ends.append(-1)
    return shown[: ends.index(stop) + 1] if stop in ends else shown


class ChunkBuilder(Struct, frozen=True):
    conversation: Conversation
    conversation_id: str
    plan: Plan
    budget: Budget
    options: SummaryOptions
    count: Count
    cached: View | None = None
    """View with quotations and the chunks of `plan.base`; None if unknown. The provider may have cached this view."""
    said: Sequence[tuple[int, UserWords]] = ()
    """The user's words in the plan's spans, each with the position of its message."""
    words_room: int = 0
    """Maximum tokens of the user's words in all chunks."""

    def with_words(self) -> ChunkBuilder:
        plan, conversation = self.plan, self.conversation
        if not self.options.user_words:
            return self
        said = own_entries(conversation.transcript, plan.spans[0].start, plan.spans[-1].stop) if plan.spans else ()
        room = words_room(conversation, plan.base, plan.spans, self.budget, self.options)
        return replace(self, said=said, words_room=room)

    def of_messages(self, span: Span) -> Draft:
        """Draft a level 0 chunk from the messages of a span."""
        transcript = self.conversation.transcript
        end = self.plan.spans[-1].stop
        carried = tuple(index - span.start for index in transcript.carried(span.start, span.stop, end))
        continued = span.stop < end
        chunk = replace(self._blank(span.start, span.stop, carried, ()), continued=continued)
        base = self.plan.base
        shown = self._shown(base, span) if span.start == base.covered else None
        later = (prompts.LATER_NOTE,) if base.chunks else ()
        replaces = replaced_tokens(transcript, span, end)
        chunk = self._with_beside(chunk, replaces, (), span)
        return self._draft(chunk, self._quoted(span, carried), replaces, shown=shown, beside=later)

    def of_update(self, span: Span, prior: Sequence[SummaryChunk]) -> Draft:
        """Draft a level 0 chunk of the history up to the span's end, from `prior` chunks and the span's messages."""
        transcript, cumulative = self.conversation.transcript, self.options.cumulative
        prior = [*map(self._without_failed_results, prior)]
        kept = transcript.carried(0, span.stop, span.stop)
        chunk = self._blank(0, span.stop, kept, () if cumulative else tuple(each.id for each in prior))
        carried = tuple(index - span.start for index in kept if index >= span.start)
        quoted, replaces, path = self._quoted(span, carried), replaced_tokens(transcript, span, span.stop), Path()
        if not prior:
            chunk = self._with_beside(chunk, replaces, (), span)
            return self._draft(chunk, quoted, replaces, shown=self._shown(path, span), notes=self._notes)
        released = {
            index: transcript.messages[index]
            for each in prior
            for offset in each.carried
            if (index := each.first_index + offset) not in kept and index < span.start
        }
        if span.start:
            path = Path(tuple(prior), span.start) if cumulative else self.plan.base
            replaces += sum(chunk.tokens for chunk in prior) + sum(map(transcript.tokens_of, released))
        before = prompts.quote_chunks(prior, released, fence_of(chunk.through_digest))
        shown = self._shown(path, span)
        prompt, notes = self.options.update_prompt or self.options.prompt, (prompts.UPDATE_NOTE, *self._notes)
        last = marked("notes", prior[-1].text, fence_of(prior[-1].through_digest))
        beside = () if span.start else (f"{prompts.NOTES_SO_FAR}\n{last}",)
        chunk = self._with_beside(chunk, replaces, prior, span)
        quoted = f"{before}\n{quoted}"
        return self._draft(chunk, quoted, replaces, prompt=prompt, notes=notes, shown=shown, beside=beside)

    @property
    def _notes(self) -> tuple[str, ...]:
        return (prompts.RECENT_NOTE,) if self.options.strategy == "checkpoint" else ()

    def _quoted(self, span: Span, carried: tuple[int, ...]) -> str:
        """Return the span's transcript. `carried`: messages that stay verbatim, as offsets from the span's start."""
        transcript, context = self.conversation.transcript, self.conversation.client_context
        stands = {span.start + offset for offset in carried}
        repeated = context.carry_over(span.stop, stands)
        messages = [
            message if index in stands else context.without_repeated(message, index, repeated)
            for index, message in enumerate(transcript.messages[span.start : span.stop], span.start)
        ]
        tokens = quoted_tokens(transcript, span.start, span.stop)
        # A span is too large for one call only if it is a single unit, or was planned for a `shown` view.
        longest, readable = maxsize, self.options.input_tokens
        if tokens > readable:
            lengths = [len(text) for message in messages for text in message.texts]
            room = min(3 * readable, sum(lengths) * readable // tokens)  # In characters, about 3 per token.
            longest = max(200, longest_within(lengths, room))
        recent = len(messages) - len(messages) // 3 if self.options.strategy == "checkpoint" else None
        fence = fence_of(self.conversation.chain[span.stop])
        return prompts.quote_messages(messages, span.start, carried, fence, longest, recent)

    def _shown(self, path: Path, span: Span) -> View | None:
        """Return the view up to the span's end; None if the summariser reads a transcript instead."""
        if not is_shown(self.conversation, path, span, self.options):
            return None
        tokens = shown_size(self.conversation, path, span)
        view = self.cached if self.cached and path == self.plan.base else build_view(self.conversation, path)
        parts = tuple(_before(span.stop, view.parts))
        notes = sum(part.tokens for part in parts if isinstance(part, Note) and part.messages)
        # Providers refuse a tool call without its result. The repair need not count tokens here.
        return repair(self.conversation, View(parts, tokens + notes), lambda _: 0)

    def of_fold(self, chunks: Sequence[SummaryChunk], *, continued: bool) -> Draft:
        """Draft a fold of chunks. It also replaces messages that these chunks left verbatim: see `released_by`."""
        chunks = [*map(self._without_failed_results, chunks)]
        start = chunks[0].first_index
        stop = chunks[-1].last_index + 1
        transcript = self.conversation.transcript
        kept = transcript.carried(start, stop, stop)
        released = {index: transcript.messages[index] for index in released_by(transcript, chunks)}
        blank = replace(
            self._blank(start, stop, tuple(index - start for index in kept), tuple(chunk.id for chunk in chunks)),
            level=1 + max(chunk.level for chunk in chunks),
            continued=continued,
        )
        quoted = prompts.quote_chunks(chunks, released, fence_of(blank.through_digest))
        replaces = sum(chunk.tokens for chunk in chunks) + sum(map(transcript.tokens_of, released))
        blank = self._with_beside(blank, replaces, chunks)
        return self._draft(blank, quoted, replaces, notes=(prompts.FOLD_NOTE,))

    def _with_beside(
        self, chunk: SummaryChunk, replaces: int, chunks: Sequence[SummaryChunk], span: Span | None = None
    ) -> SummaryChunk:
        """Return the chunk with the exact values and the user's words of `chunks` and of the span's messages."""
        messages = self.conversation.transcript.messages[span.start : span.stop] if span else ()
        room = int(self.options.values_share * self._cap(chunk, replaces))
        values: tuple[str, ...] = ()
        if room:
            held = [[*map(parse_record, each.values)] for each in chunks]
            beside = () if chunks else (parse_record(line) for each in self.plan.base.chunks for line in each.values)
            turns = (
                [self.conversation.transcript.turn_at(index + 1) for index in range(span.start, span.stop)]
                if span
                else []
            )
            new = extract_records(messages, merge_records(beside), turns)
            values = fit_records(merge_ranked([*held, new]) if held else new, room, self.count)
        chunk = replace(chunk, values=values)
        return self._with_words(chunk, replaces, chunks, span) if self.options.user_words else chunk

    def _with_words(
        self, chunk: SummaryChunk, replaces: int, chunks: Sequence[SummaryChunk], span: Span | None
    ) -> SummaryChunk:
        carried = {chunk.first_index + offset for offset in chunk.carried}
        said = [(index, entry) for index, entry in self.said if span and span.start <= index < span.stop]
        others = [each for each in self.plan.base.chunks if each.last_index < chunk.first_index]
        room, wide = self._words_room(said, held_tokens(others), is_fold=bool(chunks) or self.options.cumulative)
        if released := {each.first_index + offset for each in chunks for offset in each.carried} - carried:
            found = own_entries(self.conversation.transcript, min(released), max(released) + 1)
            said += [(index, entry) for index, entry in found if index in released]
        entries = [entry for each in chunks for entry in each.user_words]
        entries += [entry for index, entry in said if index not in carried]
        entries.sort(key=lambda entry: entry.turn or 0)
        most = int(WORDS_SHARE * replaces)
        kept = fitting_words(entries, min(room, most), min(wide, most), self.count)
        tokens = self.count(quote_user_words(kept, fence_of(chunk.through_digest)))
        return replace(chunk, user_words=kept, user_words_tokens=tokens)

    def _words_room(self, said: Sequence[tuple[int, UserWords]], held: int, *, is_fold: bool) -> tuple[int, int]:
        """Return the arguments `room` and `wide` of `fitting_words` for one chunk, in tokens. `held`: tokens of the
        user's words in earlier chunks.

        A fold leaves room for the next chunk. The spans of a compaction share the room in proportion to the length of
        the user's words in each span.
        """
        one, shared = self.budget.chunk_words, self.budget.words
        if is_fold:
            room = max(shared - one - held, one)
            return room, max(self.words_room - one // 2 - held, room)
        room = min(one, max(0, shared - held))
        wide = max(self.words_room - one // 2 - held, one // 2)
        part = sum(len(entry.text) for _, entry in said) / max(1, sum(len(entry.text) for _, entry in self.said))
        return int(part * room), int(part * wide)

    def _cap(self, chunk: SummaryChunk, replaces: int) -> int:
        """Return the maximum tokens of a chunk: `budget.summary`, doubled for a chunk of messages that also replaces
        older chunks, but at most `AIMED_SHARE` of `replaces`."""
        takes_in = chunk.level == 0 and bool(chunk.children)
        return min((1 + takes_in) * self.budget.summary, int(AIMED_SHARE * replaces))

    def _blank(self, start: int, stop: int, carried: tuple[int, ...], children: tuple[str, ...]) -> SummaryChunk:
        transcript, chain = self.conversation.transcript, self.conversation.chain
        prompt = self.options.prompt + self.options.update_prompt
        return SummaryChunk(
            id="",
            conversation_id=self.conversation_id,
            series=self.plan.range.series,
            level=0,
            from_digest=chain[start],
            through_digest=chain[stop],
            last_message_digest=transcript.messages[stop - 1].digest,
            first_index=start,
            last_index=stop - 1,
            through_turn=transcript.turn_at(stop),
            carried=carried,
            text="",
            tokens=0,
            model=self.options.model,
            prompt_version=blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest(),
            children=children,
            history_length=len(transcript),
        )

    def _draft(
        self,
        chunk: SummaryChunk,
        quoted: str,
        stands_for: int,
        *,
        prompt: str = "",
        notes: tuple[str, ...] = (),
        shown: View | None = None,
        beside: tuple[str, ...] = (),
    ) -> Draft:
        held = self.count(prompts.chunk_beside(chunk))
        values = held - chunk.user_words_tokens
        replaces, least = stands_for, MINIMUM_TOKENS
        if len(self.plan.spans) > 1 and replaces - held < LEAST_PART:
            replaces, least = LEAST_PART + held, 1
        aim = max(MINIMUM_TOKENS, self._cap(chunk, replaces - chunk.user_words_tokens) - values)
        prompt, quoted = prompt or self.options.prompt, without_secrets(quoted)
        return Draft(chunk, quoted, stands_for, prompt, notes, shown, beside, aim, replaces - held, least)

    def call(self, draft: Draft, refused: Reasons) -> SummaryRequest:
        """Return the call for a draft. `refused`: reasons why Steno rejected the first answer. A retry has a stricter
        prompt, twice the output cap, and no view: the summariser may have continued the view's conversation."""
        room, shown = (2 * draft.aim, None) if refused else (draft.aim, draft.shown)
        stricter = (prompts.STRICTER_NOTE.format(reason=reason.text) for reason in refused)
        focus = (prompts.FOCUS_NOTE + one_line(self.options.focus),) if self.options.focus else ()
        hints = (*focus, *draft.notes, *stricter)
        cap = ceil(room * self.options.ratio)
        request = prompts.summary_request(draft.prompt, draft.quoted, draft.aim, cap, hints, shown, draft.beside)
        return replace(request, stands_for=draft.stands_for, room=room)

    def read(self, draft: Draft, call: SummaryRequest, answer: SummaryAnswer) -> SummaryChunk | Failure:
        text, asked = visible_text(answer.text), call.closing or call.instructions
        found = objection(answer, self.count(text), call.room, draft.replaces, asked, draft.least)
        if found is not None:
            # A summary of fewer messages is shorter.
            is_too_long = answer.ending is Ending.CUT_OFF or found.code is Code.SUMMARY_TOO_LONG
            return Failure((found,), overflow=is_too_long)
        chunk = draft.chunk
        values = (line for line in map(without_secrets, chunk.values) if line != REMOVED)
        chunk = replace(
            chunk,
            model=answer.model or chunk.model,
            values_kept=kept_share(chunk.values, text),
            text=without_secrets(text + self._failed_results(chunk)),
            values=tuple(values),
            user_words=tuple(replace(entry, text=without_secrets(entry.text)) for entry in chunk.user_words),
        )
        return addressed(replace(chunk, tokens=note_tokens(prompts.chunk_text(chunk), self.count)))

    def _failed_results(self, chunk: SummaryChunk) -> str:
        transcript = self.conversation.transcript
        return prompts.failed_results(
            transcript.messages[chunk.first_index : chunk.last_index + 1], self.options.failed_results
        )

    def _without_failed_results(self, chunk: SummaryChunk) -> SummaryChunk:
        """Return the chunk without its list of failed results, because the summariser would copy the list."""
        if not self._failed_results(chunk):
            return chunk
        # Search for the heading, because lists of earlier releases have other line breaks.
        written, heading, _ = chunk.text.rpartition(prompts.FAILURES_HEADING)
        return replace(chunk, text=written) if heading else chunk


def addressed(chunk: SummaryChunk) -> SummaryChunk:
    """Return the chunk with its id: a digest of series, level, range and the chunk's text in a payload."""
    address = blake2b(digest_size=16, person=b"steno-chunk")
    for part in (chunk.series, str(chunk.level), chunk.text, prompts.chunk_beside(chunk)):
        encoded = part.encode("utf-8", "surrogatepass")
        address.update(len(encoded).to_bytes(8, "big") + encoded)
    address.update(chunk.from_digest + chunk.through_digest)
    return replace(chunk, id=f"chk_{address.hexdigest()}")


def corrected(chunk: SummaryChunk, conversation_id: str, count: Count, text: str) -> SummaryChunk:
    """Return the chunk with another text, under a new id; the same chunk if the text does not differ.
    `conversation_id`: conversation in which a person edited the chunk."""
    wanted = replace(chunk, text=text.strip())
    if wanted == chunk:
        return chunk
    written = replace(
        wanted,
        conversation_id=conversation_id,
        values_kept=kept_share(wanted.values, wanted.text),
        prompt_version=EDITED,
        tokens=note_tokens(prompts.chunk_text(wanted), count),
        created_at=None,
    )
    return addressed(written)
