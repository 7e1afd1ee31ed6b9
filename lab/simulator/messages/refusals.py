"""Refusals of Messages, in Anthropic's words."""

from __future__ import annotations

from lab.simulator.refusals import Refused


def refusal(message: str, kind: str = "invalid_request_error", status: int = 400) -> Refused:
    """An error answer, but for the request's id."""
    return Refused(message, status, {"type": "error", "error": {"type": kind, "message": message}})


def require(holds: object, message: str) -> None:
    if not holds:
        raise refusal(message)


def missing(path: str) -> Refused:
    return refusal(f"{path}: Field required")


def unknown(path: str) -> Refused:
    return refusal(f"{path}: Extra inputs are not permitted")


def wrong_tag(path: str, tag: str, expected: list[str]) -> Refused:
    known = ", ".join(f"'{each}'" for each in expected)
    return refusal(f"{path}: Input tag '{tag}' found using 'type' does not match any of the expected tags: {known}")


def unreadable() -> Refused:
    return refusal("The request body is not valid JSON.")


def no_thinking_first(index: int, found: str) -> Refused:
    return refusal(
        f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. "
        "When `thinking` is enabled, a final `assistant` message must start with a thinking block (preceeding the "
        "lastmost set of `tool_use` and `tool_result` blocks). We recommend you include thinking blocks from previous "
        "turns. To avoid this requirement, disable `thinking`."
    )


def wrong_signature(path: str, kind: str) -> Refused:
    return refusal(f"{path}: Invalid `{_sealed(kind)}` in `{kind}` block")


def changed_thinking(path: str) -> Refused:
    return refusal(
        f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. "
        "These blocks must remain as they were in the original response."
    )


def bound_elsewhere(path: str, kind: str) -> Refused:
    return refusal(
        f"{path}: Invalid `{_sealed(kind)}` in `{kind}` block. The block is bound to a different conversation. "
        'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". '
        "That setting requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` header."
    )


def _sealed(kind: str) -> str:
    return "data" if kind == "redacted_thinking" else "signature"
