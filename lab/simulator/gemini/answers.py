"""Answers: what the model says, as Google writes it, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from app.tokens.estimate import Count
from lab.simulator.format import Accepted, Answer, Frame, Json
from lab.simulator.gemini.judge import is_signing, seal
from lab.simulator.replies import THOUGHT, pieces, spoken
from lab.simulator.script import Fault

_WITH_CONTENT = ("STOP", "MAX_TOKENS")


def compose(sequence: int, accepted: Accepted, fault: Fault, text: str, count: Count) -> Answer:
    """The answer with this text, as the fault wants it and within the caller's limit, which thoughts spend, too."""
    thought = _thought(accepted, fault)
    thoughts = count(thought)
    most = None if accepted.max_tokens is None else max(0, accepted.max_tokens - thoughts)
    said, cut = spoken(fault, text, most, count)
    reason = fault.finish_reason or ("MAX_TOKENS" if cut else "STOP")
    calls = _calls(sequence, accepted.model, fault)
    signatures = [{"thoughtSignature": seal(accepted.model, thought, calls[0] if calls else None)}] if thought else []
    shown: list[Json] = [{"text": thought, "thought": True}] if thought and _asked(accepted, "includeThoughts") else []
    signed = [
        {"functionCall": call, **(signatures[0] if signatures and not index else {})}
        for index, call in enumerate(calls)
    ]
    texts = [{"text": said, **(signatures[0] if signatures and not calls else {})}] if said else []
    parts = [*shown, *texts, *signed] if reason in _WITH_CONTENT else []
    spent = count(said or "") + sum(count(part) for call in fault.tool_calls for part in (call.name, call.arguments))
    usage = {**_usage(accepted, spent, thoughts), **(fault.usage or {})}
    head = {"modelVersion": accepted.model, "responseId": f"sim{sequence:018d}"}

    def response(parts: Sequence[Json], usage: Json, reason: str | None) -> Json:
        content = {**({"parts": parts} if parts else {}), "role": "model"} if reason in (None, *_WITH_CONTENT) else {}
        ended = {} if reason is None else {"finishReason": reason}
        return {"candidates": [{"content": content, **ended, "index": 0}], "usageMetadata": usage, **head}

    def frames() -> Iterator[Frame]:
        chunks: list[Sequence[Json]] = [[part] for part in shown]
        chunks += [[{"text": piece}] for piece in pieces(said or "")]
        chunks += [[part] for part in signed] or [[{"text": "", **each}] for each in signatures if said]
        last = len(chunks) - 1
        for index, chunk in enumerate(chunks[:-1]):
            yield Frame(None, response(chunk, _so_far(usage, spent * (index + 1) // (last + 1)), None))
        yield Frame(None, response(chunks[-1] if parts else [], usage, reason))

    return Answer(said, usage, response(parts, usage, reason), frames())


def _asked(accepted: Accepted, name: str) -> object:
    config = accepted.request.get("generationConfig") or {}
    return (config.get("thinkingConfig") or {}).get(name)


def _thought(accepted: Accepted, fault: Fault) -> str:
    """Thought before an answer; newer models always have one."""
    thinks = is_signing(accepted.model) or ("-think" in accepted.model and _asked(accepted, "thinkingBudget") != 0)
    return fault.thinking or (THOUGHT if thinks else "")


def _calls(sequence: int, model: str, fault: Fault) -> list[Json]:
    """Only newer models name their calls."""
    made = [
        call.id or (f"call{sequence}{index}" if is_signing(model) else None)
        for index, call in enumerate(fault.tool_calls)
    ]
    return [
        {"name": call.name, "args": msgspec.json.decode(call.arguments), **({} if own is None else {"id": own})}
        for call, own in zip(fault.tool_calls, made, strict=True)
    ]


def _usage(accepted: Accepted, candidates: int, thoughts: int) -> Json:
    """Counts; those that are zero are absent, and the prompt's holds what was read from the cache."""
    prompt = accepted.prompt_tokens
    counts = {
        "promptTokenCount": prompt,
        "cachedContentTokenCount": accepted.cached.read,
        "candidatesTokenCount": candidates,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": prompt + candidates + thoughts,
    }
    details = {"promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}]}
    return {**{name: value for name, value in counts.items() if value}, **details}


def _so_far(usage: Json, candidates: int) -> Json:
    """Usage before the last chunk, whose prompt is not counted whole yet."""
    prompt = usage.get("promptTokenCount", 0) // 2
    counts = {"candidatesTokenCount": candidates} if candidates else {}
    return {"promptTokenCount": prompt, **counts, "totalTokenCount": prompt + candidates}
