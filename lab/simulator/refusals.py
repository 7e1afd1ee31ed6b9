"""Refusals: what OpenAI's APIs answer to a request they do not accept, in their own words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer: status and OpenAI's error object."""

    message: str
    param: str | None = None
    code: str | int | None = None
    status: int = 400
    type: str = "invalid_request_error"

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class Rejection(Protocol):
    """A refusal of any provider."""

    @property
    def message(self) -> str: ...

    @property
    def status(self) -> int: ...

    @property
    def body(self) -> Mapping[str, Any]: ...


class Refused(Exception):
    def __init__(self, refusal: Rejection) -> None:
        super().__init__(refusal.message)
        self.refusal: Any = refusal
        """Refusal, of the type that its provider's have."""


def refused_by(check: Callable[..., object], *arguments: Any) -> Any:
    """Refusal that a check raises for these arguments; None for none."""
    try:
        check(*arguments)
    except Refused as refused:
        return refused.refusal
    return None


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


def missing(path: str) -> Refusal:
    return Refusal(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def unknown(path: str) -> Refusal:
    return Refusal(f"Unknown parameter: '{path}'.", path, "unknown_parameter")


def wrong_type(path: str, expected: str, value: Any) -> Refusal:
    message = f"Invalid type for '{path}': expected {expected}, but got {type_name(value)} instead."
    return Refusal(message, path, "invalid_type")


def wrong_value(path: str, value: str, supported: tuple[str, ...]) -> Refusal:
    message = f"Invalid value: '{value}'. Supported values are: {listed(supported)}."
    return Refusal(message, path, "invalid_value")


def wrong_pattern(path: str, pattern: str) -> Refusal:
    message = (
        f"Invalid '{path}': string does not match pattern. Expected a string that matches the pattern '{pattern}'."
    )
    return Refusal(message, path, "invalid_value")


def too_long(path: str, longest: int, length: int) -> Refusal:
    message = (
        f"Invalid '{path}': string too long. Expected a string with maximum length {longest}, "
        f"but got a string with length {length} instead."
    )
    return Refusal(message, path, "string_above_max_length")


def empty_array(path: str) -> Refusal:
    message = f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    return Refusal(message, path, "empty_array")


def long_array(path: str, longest: int, length: int) -> Refusal:
    message = (
        f"Invalid '{path}': array too long. Expected an array with maximum length {longest}, "
        f"but got an array with length {length} instead."
    )
    return Refusal(message, path, "array_above_max_length")


def out_of_range(path: str, value: float, least: float, most: float) -> Refusal:
    kind = "integer" if isinstance(least, int) else "decimal"
    side, sign, bound = ("below minimum", ">=", least) if value < least else ("above maximum", "<=", most)
    message = f"Invalid '{path}': {kind} {side} value. Expected a value {sign} {bound:g}, but got {value} instead."
    code = f"{kind}_{'below_min' if value < least else 'above_max'}_value"
    return Refusal(message, path, code)


_EXPECTED = {bool: "a boolean", str: "a string", dict: "an object", list: "an array"}


def check_types(values: Mapping[str, Any], types: Mapping[type, Sequence[str]], path: str = "") -> None:
    """Raise what OpenAI says to the first of the members named in `types` that has another type; null has none.
    `path`: what stands before their names."""
    for kind, names in types.items():
        for name in names:
            if values.get(name) is not None and not isinstance(values[name], kind):
                raise Refused(wrong_type(path + name, _EXPECTED[kind], values[name]))


def check_number(name: str, value: Any, least: float, most: float) -> None:
    """Raise what OpenAI says to a number of another kind than its bounds are of, or outside of them."""
    whole = isinstance(least, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise Refused(wrong_type(name, "an integer" if whole else "a decimal", value))
    if not least <= value <= most:
        raise Refused(out_of_range(name, value, least, most))


def read_members(
    written: Mapping[str, str], *always: str
) -> tuple[Mapping[str, frozenset[str]], Mapping[str, tuple[str, ...]]]:
    """Members by type, and those required, of a table in which `!` stands behind a required one."""
    members = {kind: frozenset((*always, *names.replace("!", "").split())) for kind, names in written.items()}
    required = {kind: tuple(name[:-1] for name in names.split() if name[-1] == "!") for kind, names in written.items()}
    return members, required


def check_object(path: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise Refused(wrong_type(path, "an object", value))


def check_string(path: str, value: Any) -> None:
    if value is None:
        raise Refused(missing(path))
    if not isinstance(value, str):
        raise Refused(wrong_type(path, "a string", value))


def check_kind(path: str, value: Any, supported: tuple[str, ...]) -> None:
    check_string(path, value)
    if value not in supported:
        raise Refused(wrong_value(path, value, supported))


def check_keys(path: str, value: Mapping[str, Any], known: Collection[str]) -> None:
    for key in value:
        if key not in known:
            raise Refused(unknown(f"{path}.{key}"))


def no_such_model(model: str) -> Refusal:
    message = f"The model `{model}` does not exist or you do not have access to it."
    return Refusal(message, None, "model_not_found", 404)


def no_such_path(method: str, path: str) -> Refusal:
    return Refusal(f"Invalid URL ({method} {path})", status=404)


def no_such_method(method: str, path: str) -> Refusal:
    message = f"Not allowed to {method} on {path}. (HINT: Perhaps you meant to use a different HTTP method?)"
    return Refusal(message, None, "method_not_supported", 405)


def roles_do_not_alternate() -> Refusal:
    """Refusal of Mistral's and similar templates, in vLLM's words."""
    message = "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
    return Refusal(message, None, 400, type="BadRequestError")


def unreadable() -> Refusal:
    return Refusal(
        "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
        "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
    )
