"""Histories of Gemini as its clients write them: cut and masked anywhere, the strict provider takes them still."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from app.compaction.view import Altered, Conversation, Note, Part, Pinned, Pruned, Verbatim, View
from app.formats.gemini.format import GEMINI
from app.formats.reader import MessageReader
from app.tokens.estimate import Costs
from lab.simulator.gemini.contents import camel_case
from lab.simulator.gemini.judge import check, seal
from lab.simulator.refusals import refused_by
from tests.unit.conversations import IDENTITY, count

MODELS = ("gemini-2.5-pro", "gemini-3-pro")


def history(random: Random, model: str) -> Iterator[Any]:
    for turn in range(random.randint(1, 5)):
        for _ in range(random.choice((1, 1, 1, 2))):
            yield content(random, "user", [{"text": f"Question {turn}."}])
        for step in range(random.choice((0, 0, 1, 3))):
            calls = [{"name": f"f{at % 2}", "args": {"x": "long " * 9, "at": at}} for at in range(random.randint(1, 3))]
            if random.random() < 0.5:
                calls = [{**call, "id": f"c{turn}{step}{at}"} for at, call in enumerate(calls)]
            parts: list[Any] = [{"functionCall": call} for call in calls]
            parts[0]["thoughtSignature"] = url_safe(random, seal(model, "thought", calls[0]))
            if random.random() < 0.3:
                parts.insert(0, {"text": "I will look."})
            apart = random.random() < 0.3 and len(parts) > 1
            yield from (content(random, "model", each) for each in ([parts[:1], parts[1:]] if apart else [parts]))
            named = [{key: call[key] for key in ("name", "id") if key in call} for call in calls]
            results = [{"functionResponse": {**each, "response": response(random)}} for each in named]
            yield content(random, "user", results)
        if random.random() < 0.9:
            thoughts = [{"text": "Hm.", "thought": True}] if random.random() < 0.3 else []
            yield content(random, "model", [*thoughts, {"text": f"Answer {turn}."}])
            yield from [content(random, "model", [{"text": ""}])] * random.choice((0, 0, 1))
    yield content(random, "user", [{"text": "The last question."}])


def content(random: Random, role: str, parts: list[Any]) -> Any:
    snake = {
        "functionCall": "function_call",
        "thoughtSignature": "thought_signature",
        "functionResponse": "function_response",
    }
    if random.random() < 0.3:
        parts = [{snake.get(name, name): held for name, held in part.items()} for part in parts]
    return {"parts": parts, **({} if role == "user" and random.random() < 0.3 else {"role": role})}


def response(random: Random) -> Any:
    return random.choice(({"result": "found " * 30}, {"error": "none", "code": 4}, {"rows": [{"a_b": 1}] * 9}, {}))


def url_safe(random: Random, signature: str) -> str:
    return random.choice((signature, signature.replace("+", "-").replace("/", "_").rstrip("=")))


def view_of(random: Random, talk: Conversation) -> View:
    """A summary, masks and pins, and what is left of the history behind a cut."""
    transcript = talk.transcript
    cut, parts = random.choice(transcript.cuts), list[Part]()
    if cut:
        summary, gone = Note("stub", "A summary of what was said.", 9), Pruned(0, cut)
        parts.append(summary if random.random() < 0.5 else gone)
        units = [unit for unit in zip(transcript.cuts, transcript.cuts[1:], strict=False) if unit[1] <= cut]
        if units and isinstance(parts[0], Note) and random.random() < 0.4:
            start, stop = random.choice(units)
            if transcript.is_answered(start, stop):
                parts.append(Pinned(start, stop))
    for index in range(cut, len(transcript)):
        message = transcript.messages[index]
        if random.random() < 0.4 and index != len(transcript) - 1 and (message.answers or message.calls):
            texts = tuple("cut" if text else text for text in message.texts)
            calls = tuple((at, '{"x":"cut"}') for at in range(len(message.calls))) if message.calls else None
            parts.append(Altered(index, texts, 1, "masked", calls=calls))
        else:
            parts.append(Verbatim(index, index + 1))
    return View(tuple(parts), 1)


@pytest.mark.parametrize("model", MODELS)
def test_what_the_provider_takes_it_takes_cut_and_masked_too(model: str) -> None:
    played = 0
    for seed in range(600):
        random = Random(f"gemini-{seed}")
        contents = list(history(random, model))
        if refused_by(check, {"contents": camel_case(contents)}, model) is not None:
            continue
        raw = [json.dumps(each).encode() for each in contents]
        messages = MessageReader(IDENTITY, GEMINI.message).read(raw)
        costs = partial(Costs, [count(each.text) for each in messages], 0)
        talk = Conversation(messages, IDENTITY, "t", costs, None)
        view = view_of(random, talk)
        sent = GEMINI.render(talk, view)
        refused = refused_by(check, {"contents": camel_case([json.loads(each) for each in sent])}, model)
        assert refused is None, (seed, refused, view.parts, sent)
        left = iter(sent)
        kept = (raw[part.start] for part in view.parts if isinstance(part, Verbatim))
        assert all(each in left for each in kept), "what is verbatim keeps its bytes and its order"
        played += 1
    assert played > 300
