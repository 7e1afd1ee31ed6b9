"""The simulated provider: what it refuses in each format, what it counts, and how it summarises."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from lab.simulator.chat_completions.format import ChatCompletions
from lab.simulator.counting import Block, BreakpointCache, Cached
from lab.simulator.format import Accepted, Format
from lab.simulator.gemini.format import Gemini
from lab.simulator.gemini.judge import DUMMIES
from lab.simulator.gemini.judge import check as check_contents
from lab.simulator.gemini.judge import seal as seal_thought
from lab.simulator.log import Record
from lab.simulator.messages.binding import seal, whole_prefix
from lab.simulator.messages.format import Messages
from lab.simulator.messages.judge import check as check_messages
from lab.simulator.refusals import Refused, refused_by
from lab.simulator.responses.format import Responses
from lab.simulator.rules import Model, Rules

CASES: Mapping[str, list[dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("simulator.yaml").read_text("utf-8")
)
FORMATS: Mapping[str, type[Format]] = {
    "chat_completions": ChatCompletions,
    "messages": Messages,
    "responses": Responses,
    "gemini": Gemini,
}
MODELS = {model.name: model for model in (Model("m"), Model("o", unsupported=frozenset({"max_tokens"})))}
ANY, NAMED = Rules(100_000), Rules(100_000, MODELS, max_messages=2_048)
USER: Any = {"role": "user", "content": "Hello"}


def read(written: str, payload: Any, rules: Rules) -> Accepted:
    body = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    asked = FORMATS[written](len)
    return asked.read(Record(1, 0.0, "POST", asked.path, (), body, "chat"), rules, lambda _: None)


def error(written: str, payload: Any, rules: Rules = ANY) -> Any:
    """The error object in the answer; None for a request that is accepted."""
    try:
        read(written, payload, rules)
    except Refused as refused:
        return refused.body["error"]
    return None


@pytest.mark.parametrize(
    ("written", "case"),
    [pytest.param(written, case, id=f"{written}-{case['name']}") for written, cases in CASES.items() for case in cases],
)
def test_a_request_is_refused_in_the_providers_words_or_accepted(written: str, case: dict[str, Any]) -> None:
    rules = NAMED if written == "chat_completions" else ANY
    assert error(written, case["request"], rules) == case["error"]


# Thinking of Messages bound to its prefix

TEXT = {"type": "text", "text": "Hello"}
BEFORE = {"model": "claude-bind", "max_tokens": 100, "messages": [USER], "system": "Be kind."}


def thinking(before: Mapping[str, Any]) -> dict[str, Any]:
    """As the simulator hands it out behind this request."""
    return {"type": "thinking", "thinking": "Hm.", "signature": seal(whole_prefix(before), "Hm.")}


def continued(**changes: Any) -> dict[str, Any]:
    """The request whose answer was thinking and a word, with a turn more."""
    answer = {"role": "assistant", "content": [thinking(BEFORE), TEXT]}
    return {**BEFORE, "messages": [USER, answer, USER], **changes}


def refused(asked: Any, *betas: str) -> str:
    rejection = refused_by(check_messages, asked, betas)
    return "" if rejection is None else rejection.message


LONGER = {"messages": [*continued()["messages"], {"role": "assistant", "content": [thinking(continued()), TEXT]}, USER]}
WITHOUT_THE_FIRST = [USER, {"role": "assistant", "content": [TEXT]}, *LONGER["messages"][2:]]


@pytest.mark.parametrize(
    "changes",
    [
        {"system": "Be cruel."},
        {"tools": [{"name": "look_up", "input_schema": {}}]},
        {"messages": [{"role": "user", "content": "A summary."}, *continued()["messages"][1:]]},
        {"messages": [USER, *continued()["messages"]]},
        {"messages": WITHOUT_THE_FIRST},
    ],
    ids=["system", "tools", "replaced", "longer", "without earlier thinking"],
)
def test_thinking_is_refused_behind_any_other_prefix(changes: Any) -> None:
    assert refused(continued(**LONGER)) == ""
    message = refused(continued(**changes))
    assert "The block is bound to a different conversation. Remove the block, or set" in message
    assert refused(continued(**changes, model="claude-think")) == "", "other models read it anywhere"


# Signatures of Gemini

ASKS: Any = {"role": "user", "parts": [{"text": "Hello"}]}
SAYS: Any = {"role": "model", "parts": [{"text": "Yes."}]}
ANSWERS: Any = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}
NEW = "gemini-3.6-flash"
MISSING = "Function call is missing a thought_signature in functionCall parts."


def step(signature: object, **args: Any) -> list[Any]:
    call = {"functionCall": {"name": "f", "args": args}}
    signed = call if signature is None else {**call, "thoughtSignature": signature}
    return [{"role": "model", "parts": [signed, call]}, {"role": "user", "parts": ANSWERS["parts"] * 2}]


def signed(model: str = NEW) -> str:
    return seal_thought(model, "Hm.", {"name": "f", "args": {}})


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([ASKS, *step(signed()), *step(signed())], ""),
        ([ASKS, *step(base64.b64encode(DUMMIES[0]).decode())], ""),
        ([ASKS, *step(signed()), *step(None)], MISSING),
        ([ASKS, *step(None), SAYS, ASKS, *step(signed())], ""),
        ([ASKS, *step(signed("gemini-3.5-pro"))], "Corrupted thought signature."),
        ([ASKS, *step(signed(), changed=True)], "Invalid thought signature."),
    ],
    ids=[
        "each step",
        "dummy",
        "missing",
        "in a past turn",
        "of another model",
        "of another call",
    ],
)
def test_newer_models_want_a_signature_with_the_first_call_of_each_step(contents: list[Any], message: str) -> None:
    refusal = refused_by(check_contents, {"contents": contents}, NEW)
    assert (refusal.message if refusal else "").startswith(message)
    assert bool(refusal) == bool(message)


# Sizes and the prompt cache

RULES = Rules(100)


def prompt_tokens(words: int) -> int:
    body = msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": "word " * words}]})
    reader = ChatCompletions(lambda text: len(text.split()))
    return reader.read(Record(1, 0.0, "POST", reader.path, (), body, "chat"), RULES, lambda _: None).prompt_tokens


def test_prompt_that_fills_the_window_is_accepted_and_one_more_word_is_not() -> None:
    assert prompt_tokens(93) == 100
    with pytest.raises(Refused) as refused:
        prompt_tokens(94)
    assert refused.value.body == {
        "error": {
            "message": "This model's maximum context length is 100 tokens. However, your messages resulted in "
            "101 tokens. Please reduce the length of the messages.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    }


def blocks(*texts: str) -> list[Block]:
    """Blocks of one token each; `*` behind a text marks it."""
    return [Block(text.rstrip("*").encode(), 1, text.endswith("*")) for text in texts]


def test_an_entry_is_found_where_a_mark_stood_and_as_many_blocks_back_as_are_looked_at() -> None:
    cache = BreakpointCache(lookback=3)
    assert cache.look_up(blocks("a", "b*", "c")) == Cached(read=0, written=2)
    assert cache.look_up(blocks("a", "b", "c*")) == Cached(read=2, written=1), "two blocks back"
    assert cache.look_up(blocks("a", "x*", "c")) == Cached(read=0, written=2), "no part of an entry is found"
    assert cache.look_up(blocks("a", "b", "c", "d", "e", "f*")) == Cached(read=0, written=6), "three blocks back"
    assert cache.look_up(blocks("a", "b", "c")) == Cached(read=0, written=0), "nothing is marked"
