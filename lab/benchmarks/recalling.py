"""Time of a recall, by the length of the history: milliseconds of the processor.

`first` reads the words of the whole history, which a process does once for each conversation; `next` is one more turn,
as all others are. Questions ask for a few words of a message in the middle; `found` is how many of them brought that
message back. Synthetic text: word frequencies fall off as in natural language (Zipf).

    python -m lab.benchmarks.recalling
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import blake2b
from statistics import median
from time import process_time

from app.core.history.identity import Identity
from app.core.history.messages import Kind, Message
from app.core.limits.budget import Budget
from app.core.limits.trigger import Trigger
from app.core.recall.policy import RecallPolicy
from app.core.recall.recall import Recollection, with_recalled
from app.core.view.chunks import SummaryChunk
from app.core.view.view import Conversation, Costs, Recalled, Summary, Verbatim, View

SIZES = (10_000, 100_000, 1_000_000)
"""Tokens."""
MESSAGE_WORDS = 100
TOKENS_A_WORD = 1.3
VOCABULARY = 30_000
TAIL = 20
QUESTIONS = 15
LIMIT = 128_000


def main() -> None:
    print(f"{'tokens':>10} {'messages':>9} {'first':>9} {'next':>9} {'found':>9}")
    for tokens in SIZES:
        print(_row(tokens), flush=True)


def _row(tokens: int) -> str:
    random_ = random.Random(tokens)
    words = [_word(random_) for _ in range(VOCABULARY)]
    weights = [1 / (rank + 1) for rank in range(VOCABULARY)]
    count = int(tokens / TOKENS_A_WORD / MESSAGE_WORDS) & ~1
    texts = [" ".join(random_.choices(words, weights, k=MESSAGE_WORDS)) for _ in range(count)]
    history = [_message(text, index) for index, text in enumerate(texts)]
    recollection: Recollection | None = None
    times, found = [], 0
    for _ in range(QUESTIONS + 1):
        asked = random_.choice(texts[: count - TAIL])
        conversation = _conversation([*history, _message(_question(asked, random_), count)])
        view = _view(conversation, count - TAIL)
        _ = conversation.chain.positions  # Whoever decides upon a view has asked for them.
        began = process_time()
        recollection = recollection or Recollection(conversation)
        recalled = with_recalled(conversation, view, recollection, RecallPolicy(), _budget(), _cost)
        times.append(1_000 * (process_time() - began))
        notes = (part for part in recalled.parts if isinstance(part, Recalled))
        found += any(texts.index(asked) in note.messages for note in notes)
    return f"{tokens:>10,} {count:>9,} {times[0]:>9.1f} {median(times[1:]):>9.1f} {found:>6} of {QUESTIONS + 1}"


def _word(random_: random.Random) -> str:
    return "".join(random_.choice(("bo", "ke", "li", "mo", "ru", "san", "ter", "vi", "no", "da")) for _ in range(4))


def _question(text: str, random_: random.Random) -> str:
    return f"{' '.join(random_.sample(text.split(), 8))}?"


def _message(text: str, index: int) -> Message:
    kind, role = (Kind.ASSISTANT, "assistant") if index % 2 else (Kind.USER, "user")
    return Message(kind, role, (text,), raw=text.encode(), digest=blake2b(text.encode(), digest_size=16).digest())


def _conversation(messages: Sequence[Message]) -> Conversation:
    costs = Costs([_cost(message) for message in messages], 3)
    return Conversation(messages, Identity(b"k" * 32), "benchmark", lambda: costs, None)


def _cost(message: Message) -> int:
    return 4 + len(message.text) // 4


def _view(conversation: Conversation, covered: int) -> View:
    chain = conversation.chain
    chunk = SummaryChunk(
        id="",
        conversation_id="",
        series="",
        level=0,
        version=1,
        from_digest=chain[0],
        through_digest=chain[covered],
        last_message_digest=b"",
        first_index=0,
        last_index=covered - 1,
        through_turn=1,
        carried=(),
        text="",
        tokens=0,
        model="",
        prompt_version="",
        history_length=covered + 1,
    )
    rest = Verbatim(covered, len(conversation.transcript))
    return View((Summary(chunk), rest), conversation.transcript.tokens(covered))


def _budget() -> Budget:
    return Budget(
        *(LIMIT, LIMIT, Trigger(())),
        target=0,
        tail_turns=0,
        tail=0,
        tail_fill=0,
        summary=0,
        fold=0,
        reported_limit=LIMIT,
    )


if __name__ == "__main__":
    main()
