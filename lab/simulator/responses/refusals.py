"""Refusals of Responses alone."""

from __future__ import annotations

from lab.simulator.refusals import Refusal

OVERFLOW = Refusal(
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "input",
    "context_length_exceeded",
)


def no_input() -> Refusal:
    message = "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided."
    return Refusal(message, None, "missing_required_parameter")


def no_output(family: str, call_id: str) -> Refusal:
    return Refusal(f"No tool output found for {family} {call_id}.", "input")


def no_call(family: str, call_id: str) -> Refusal:
    return Refusal(f"No tool call found for {family} output with call_id {call_id}.", "input")


def no_following(item_id: str) -> Refusal:
    return Refusal(f"Item '{item_id}' of type 'reasoning' was provided without its required following item.", "input")


def no_reasoning(item_id: str, kind: str, reasoning: str) -> Refusal:
    message = f"Item '{item_id}' of type '{kind}' was provided without its required 'reasoning' item: '{reasoning}'."
    return Refusal(message, "input")


def not_verified(content: str) -> Refusal:
    shown = f"{content[:4]}...{content[-4:]}"
    return Refusal(
        f"The encrypted content {shown} could not be verified. "
        "Reason: Encrypted content could not be decrypted or parsed.",
        None,
        "invalid_encrypted_content",
    )


def no_such_item(item_id: str) -> Refusal:
    return Refusal(
        f"Item with id '{item_id}' not found. Items are not persisted when `store` is set to false. "
        "Try again with `store` set to true, or remove this item from your input.",
        "input",
        None,
        404,
    )


def no_such_response(response_id: str) -> Refusal:
    message = f"Previous response with id '{response_id}' not found."
    return Refusal(message, "previous_response_id", "previous_response_not_found")


def unknown_response(response_id: str) -> Refusal:
    return Refusal(f"Response with id '{response_id}' not found.", "id", None, 404)


def no_such_conversation(conversation_id: str) -> Refusal:
    return Refusal(f"Conversation with id '{conversation_id}' not found.", "conversation", None, 404)


def two_states() -> Refusal:
    message = "Mutually exclusive parameters: 'previous_response_id' and 'conversation'."
    return Refusal(message, "conversation", "mutually_exclusive_parameters")


def duplicate(item_id: str) -> Refusal:
    message = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
    return Refusal(message, "input")


def wrong_prefix(path: str, item_id: str, prefix: str) -> Refusal:
    message = f"Invalid '{path}': '{item_id}'. Expected an ID that begins with '{prefix}'."
    return Refusal(message, path, "invalid_value")


def trigger_not_last(path: str) -> Refusal:
    return Refusal("A 'compaction_trigger' item must be the last item in 'input'.", path, "invalid_value")


def background_not_stored() -> Refusal:
    return Refusal("Background mode requires 'store' to be true.", "background", "invalid_value")
