"""Refusals: what providers answer to a request they do not accept, and what OpenAI's APIs say, in their own words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any


class Refused(Exception):
    """A request is not accepted: message, status and body of the error answer."""

    def __init__(self, message: str, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.message, self.status, self.body = message, status, body


def refused_by(check: Callable[..., object], *arguments: Any, **options: Any) -> Refused | None:
    """Refusal that a check raises for these arguments; None for none."""
    try:
        check(*arguments, **options)
    except Refused as refused:
        return refused
    return None


def refusal(
    message: str,
    param: str | None = None,
    code: str | int | None = None,
    status: int = 400,
    type: str = "invalid_request_error",  # noqa: A002 - the member's name
) -> Refused:
    """OpenAI's error object."""
    return Refused(message, status, {"error": {"message": message, "type": type, "param": param, "code": code}})


def type_name(value: Any) -> str:
    """How OpenAI's messages call a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def listed(values: list[str] | tuple[str, ...]) -> str:
    quoted = [f"'{value}'" for value in values]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


def missing(path: str) -> Refused:
    return refusal(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def unknown(path: str) -> Refused:
    return refusal(f"Unknown parameter: '{path}'.", path, "unknown_parameter")


def wrong_type(path: str, expected: str, value: Any) -> Refused:
    message = f"Invalid type for '{path}': expected {expected}, but got {type_name(value)} instead."
    return refusal(message, path, "invalid_type")


def wrong_value(path: str, value: str, supported: tuple[str, ...]) -> Refused:
    message = f"Invalid value: '{value}'. Supported values are: {listed(supported)}."
    return refusal(message, path, "invalid_value")


def wrong_pattern(path: str, pattern: str) -> Refused:
    message = (
        f"Invalid '{path}': string does not match pattern. Expected a string that matches the pattern '{pattern}'."
    )
    return refusal(message, path, "invalid_value")


def too_long(path: str, longest: int, length: int) -> Refused:
    message = (
        f"Invalid '{path}': string too long. Expected a string with maximum length {longest}, "
        f"but got a string with length {length} instead."
    )
    return refusal(message, path, "string_above_max_length")


def empty_array(path: str) -> Refused:
    message = f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    return refusal(message, path, "empty_array")


def long_array(path: str, longest: int, length: int) -> Refused:
    message = (
        f"Invalid '{path}': array too long. Expected an array with maximum length {longest}, "
        f"but got an array with length {length} instead."
    )
    return refusal(message, path, "array_above_max_length")


_EXPECTED = {bool: "a boolean", str: "a string", dict: "an object", list: "an array"}


def check_types(values: Mapping[str, Any], types: Mapping[type, Sequence[str]], path: str = "") -> None:
    """Raise what OpenAI says to the first of the members named in `types` that has another type; null has none.
    `path`: what stands before their names."""
    for kind, names in types.items():
        for name in names:
            if values.get(name) is not None and not isinstance(values[name], kind):
                raise wrong_type(path + name, _EXPECTED[kind], values[name])


def check_number(name: str, value: Any, least: int) -> None:
    """Raise what OpenAI says to what is no whole number, or too small a one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "an integer", value)
    if value < least:
        text = f"Invalid '{name}': integer below minimum value. Expected a value >= {least}, but got {value} instead."
        raise refusal(text, name, "integer_below_min_value")


def read_members(
    written: Mapping[str, str], *always: str
) -> tuple[Mapping[str, frozenset[str]], Mapping[str, tuple[str, ...]]]:
    """Members by type, and those required, of a table in which `!` stands behind a required one."""
    members = {kind: frozenset((*always, *names.replace("!", "").split())) for kind, names in written.items()}
    required = {kind: tuple(name[:-1] for name in names.split() if name[-1] == "!") for kind, names in written.items()}
    return members, required


def check_object(path: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)


def check_string(path: str, value: Any) -> None:
    if value is None:
        raise missing(path)
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)


def check_kind(path: str, value: Any, supported: tuple[str, ...]) -> None:
    check_string(path, value)
    if value not in supported:
        raise wrong_value(path, value, supported)


def check_keys(path: str, value: Mapping[str, Any], known: Collection[str]) -> None:
    for key in value:
        if key not in known:
            raise unknown(f"{path}.{key}")


def no_such_model(model: str) -> Refused:
    message = f"The model `{model}` does not exist or you do not have access to it."
    return refusal(message, None, "model_not_found", 404)


def no_such_path(method: str, path: str) -> Refused:
    return refusal(f"Invalid URL ({method} {path})", status=404)


def no_such_method(method: str, path: str) -> Refused:
    message = f"Not allowed to {method} on {path}. (HINT: Perhaps you meant to use a different HTTP method?)"
    return refusal(message, None, "method_not_supported", 405)


def roles_do_not_alternate() -> Refused:
    """Refusal of Mistral's and similar templates, in vLLM's words."""
    message = "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
    return refusal(message, None, 400, type="BadRequestError")


def unreadable() -> Refused:
    return refusal(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
        "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
    )
