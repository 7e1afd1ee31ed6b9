"""Refusals of Chat Completions alone."""

from __future__ import annotations

from lab.simulator.refusals import Refusal


def unrecognized(names: list[str]) -> Refusal:
    plural = "s" if len(names) > 1 else ""
    return Refusal(f"Unrecognized request argument{plural} supplied: {', '.join(names)}")


def unsupported(name: str) -> Refusal:
    hint = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
    message = f"Unsupported parameter: '{name}' is not supported with this model.{hint}"
    return Refusal(message, name, "unsupported_parameter")


def two_token_limits() -> Refusal:
    message = "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
    return Refusal(message, "max_tokens", "invalid_parameter_combination")


def no_content(at: str) -> Refusal:
    return Refusal("Invalid value for 'content': expected a string, got null.", f"{at}.content")


def stray_tool_result(index: int) -> Refusal:
    message = (
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
    )
    return Refusal(message, f"messages.[{index}].role")


def wrong_tool_result(index: int, call_id: str) -> Refusal:
    message = f"Invalid parameter: 'tool_call_id' of '{call_id}' not found in 'tool_calls' of previous message."
    return Refusal(message, f"messages.[{index}].tool_call_id")


def repeated_tool_result(index: int, call_id: str) -> Refusal:
    message = f"Invalid parameter: Duplicate value for 'tool_call_id' of '{call_id}'."
    return Refusal(message, f"messages.[{index}].tool_call_id")


def unanswered_calls(index: int, call_ids: list[str]) -> Refusal:
    message = (
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {', '.join(call_ids)}"
    )
    return Refusal(message, f"messages.[{index}].role")


def no_json_word() -> Refusal:
    message = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."
    return Refusal(message, "messages")


def over_the_window(window: int, messages: int, functions: int, completion: int | None) -> Refusal:
    """The prompt, or the prompt and the completion asked for, exceed the context window."""
    parts = [f"{messages} in the messages"]
    nouns = ["messages"]
    if functions:
        parts.append(f"{functions} in the functions")
        nouns.append("functions")
    if completion is None:
        detail = f" ({', '.join(parts)})" if functions else ""
        demand = f"your messages resulted in {messages + functions} tokens{detail}"
    else:
        parts.append(f"{completion} in the completion")
        nouns.append("completion")
        demand = f"you requested {messages + functions + completion} tokens ({_series(parts, 'and')})"
    return Refusal(
        f"This model's maximum context length is {window} tokens. However, {demand}. "
        f"Please reduce the length of the {_series(nouns, 'or')}.",
        "messages",
        "context_length_exceeded",
    )


def _series(words: list[str], conjunction: str) -> str:
    """a; a or b; a, b, or c. OpenAI writes no conjunction between two counts."""
    if len(words) == 1:
        return words[0]
    if len(words) == 2:
        return f"{words[0]}, {words[1]}" if conjunction == "and" else f"{words[0]} {conjunction} {words[1]}"
    return f"{', '.join(words[:-1])}, {conjunction} {words[-1]}"
