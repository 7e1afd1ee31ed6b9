"""Items: random histories of Responses with items of every type, as their provider says them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, count
from random import Random

from lab.simulator.refusals import refused_by
from lab.simulator.responses.items import PREFIXES, SAID, item_id, seal
from lab.simulator.responses.judge import check
from tests.histories.talks import MOST_REQUESTS
from tests.histories.wires import Asked, Json, Said
from tests.unit.test_responses_properties import written

END: Json = {}


def requests_of_items(seed: int) -> Iterator[Asked]:
    """What a client sends: the history up to each question, and up to where everything that was called is answered."""
    items = list(chain(*_said(written(seed), seed)))
    ends = (end for end in range(1, len(items) + 1) if _is_asking(items[end - 1]))
    legal = [items[:end] for end in ends if not refused_by(check, {"model": "gpt-x", "input": items[:end]})]
    for sent in legal[-MOST_REQUESTS:]:
        questions = [text for item in sent if item.get("role") == "user" for text in _texts(item)]
        latest = questions[-1] if questions else ""
        yield Asked(tuple(Said(item, _marks(item)) for item in sent), latest, latest, (), 0)


def _texts(item: Json) -> list[str]:
    content = item["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _marks(item: Json) -> tuple[tuple[str, str], ...]:
    """A message is known again by the word of which it is made."""
    return ((_texts(item)[0].split(" ", 1)[0], ""),) if item.get("role") in ("user", "assistant") else ()


def _is_asking(item: Json) -> bool:
    return item.get("role") == "user" or str(item.get("type")).endswith("_output")


def _said(turns: Iterable[Iterable[Json]], seed: int) -> list[list[Json]]:
    """The same items as this provider says them: it seals with a key of its own, and ids tell what they are bound to.

    Some of what is said after reasoning has no id, as some clients send it back. Every other history is an agent's one
    long turn, which has to be cut in its midst.
    """
    random, numbers = Random(seed), count(1)
    renamed: dict[str, str] = {}
    history: list[list[Json]] = []
    for turn in turns:
        asked_before = any(item.get("role") == "user" for item in chain(*history))
        goes_on = bool(seed % 2) and asked_before
        thought, items = 0, [item for item in turn if not (goes_on and item.get("role") == "user")]
        history.append([])
        for item, behind in zip(items, [*items[1:], END], strict=False):
            kind, own = item.get("type", "message"), dict(item)
            if kind == "reasoning" and behind.get("type", "message") not in (*SAID, "message"):
                continue
            if kind in ("reasoning", "compaction"):
                own["encrypted_content"] = seal(kind, f"thought {seed}")
            number = thought or next(numbers)
            if kind in PREFIXES and "id" in own:
                renamed[own["id"]] = item_id(kind, number, 1 if thought else 0, bool(thought))
                own["id"] = renamed[own["id"]]
                if kind in ("message", "function_call") and random.random() < 0.2:
                    del own["id"]
            if "approval_request_id" in own:
                own["approval_request_id"] = renamed[own["approval_request_id"]]
            thought = number if kind == "reasoning" else 0
            history[-1].append(own)
    return history
