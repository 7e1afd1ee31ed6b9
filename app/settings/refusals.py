"""Errors of settings. Their texts have the key, the given value unless it may be secret, and the allowed values.

Settings of the previous release that were removed are refused with advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails


class ConfigurationError(Exception):
    """Raised for settings that Steno cannot use; the text names the key and the allowed values."""


_PRESET_DECIDES = "The preset decides it: choose another in compaction.preset."
_NO_FUNCTIONS = "Steno adds no functions: connect an agent that wants to search to the MCP server at /mcp."
_LEARNT = "Steno learns it from the provider's first refusal."
_NATIVE = "Requests that ask their provider to compact pass: Steno no longer answers in its place."


def _each(keys: str, advice: str) -> dict[str, str]:
    """Return the same advice for several keys, given as `section: name name`."""
    section, _, names = keys.partition(": ")
    return {f"{section}.{name}": advice for name in names.split()}


REMOVED: Mapping[str, str] = {
    "clients.keys": "Steno gives out no keys: let a proxy name the caller in clients.header.",
    "clients.jwt": "Let a proxy verify tokens and name the caller in clients.header.",
    "clients.oauth": "A refreshed token is a new tenant: name the caller in clients.header, or set clients.tenant.",
    **_each(
        "limits: requests_per_minute tokens_per_day money_per_day forced_compactions_per_minute"
        " summary_tokens_per_hour",
        "Steno no longer counts what a tenant uses: set such a limit at the gateway or at the provider.",
    ),
    **_each("compaction: ask ask_functions", _NO_FUNCTIONS),
    **_each("upstream: native_compaction", _NATIVE),
    **_each("upstreams.*: native_compaction", _NATIVE),
    **_each("upstream: alternating_roles", _LEARNT),
    **_each("upstreams.*: alternating_roles", _LEARNT),
    **_each(
        "compaction.trigger: since_checkpoint_ratio of remaining_tokens overflow turns messages any",
        "The trigger is a share of the limit (token_ratio) and a cap (tokens).",
    ),
    **_each(
        "compaction: strategy floor_tokens target_ratio tail.fill_ratio tail.max_ratio session_pruning cost_gate"
        " prune.enabled",
        _PRESET_DECIDES,
    ),
    "summary.style": _PRESET_DECIDES,
    "compaction.trigger.body_bytes": "Pictures and files give way at 0.8 of what the provider takes.",
    "upstreams.*.trigger": "Set compaction.trigger.",
    "models.*.trigger": "Set compaction.trigger, or the preset of the entry.",
    "compaction.enabled": "Set compaction.preset to off, or take the key away.",
    "compaction.window.turns": "Set compaction.tail.turns.",
    "compaction.window.tokens": "Set compaction.tail.turns, or compaction.trigger.tokens.",
    "compaction.mask.allow": "Name the tools whose results stay in compaction.mask.deny.",
    "compaction.client_instructions": "Put such instructions into the system message.",
    "compaction.recall.max_tokens": "Set compaction.recall.max_ratio.",
    "compaction.pinned_text": "Pin the message that holds the rules, or put them into the system message.",
    "summary.prompts": "Set summary.prompt: one for all models and tenants.",
    "summary.rules": "What the user said is kept, without patterns.",
    "summary.values": "Exact values are always kept.",
    **_each("identity: body_names session_headers", "Send the name in x-context-conversation-id."),
    "models.*.max_output_tokens": "The provider or the bundled table says it.",
    "upstreams.*.preset": "Set the preset of an entry in models.",
    "calibration": "Estimates are always calibrated.",
    "tokenizer": "Name the folder of the tables in the variable TIKTOKEN_CACHE_DIR.",
    "telemetry": "Set the variable OTEL_TRACES_EXPORTER to otlp.",
    "limits.in_flight_bytes": "It is four times limits.body_bytes.",
    "limits.compactions_per_tenant": "It is 16.",
    "limits.receive_seconds": "It is 60.",
    "storage.encryption": "Run `steno migrate --decrypt NAME` once with each of its names, without the setting.",
    "storage.read_url": "Every read goes to storage.url: take the key away.",
    "storage.secrets": "Secrets are removed from all that is stored: take the key away.",
    "storage.statement_cache": "Behind PgBouncer put ?prepared_statement_cache_size=0 into the database URL.",
}
"""Advice for removed settings, by key; `*` matches any name."""


def refuse_removed(given: Mapping[str, Any]) -> None:
    """Raise `ValueError` with a line for each removed setting that is given."""
    found = [
        f"{'.'.join(place)} is no setting any more. {instead}"
        for key, instead in REMOVED.items()
        if (place := _given_at(given, key.split("."))) is not None
    ]
    if found:
        raise ValueError("\n".join(found).rstrip("."))


def _given_at(given: Any, names: Sequence[str]) -> list[str] | None:
    """Return the key, split into names, with actual names in place of `*`; None if `given` lacks it."""
    if not names:
        return []
    name, *rest = names
    if isinstance(given, list) and name == "*":
        entries: Any = {str(place): value for place, value in enumerate(given)}
    else:
        entries = given if isinstance(given, Mapping) else {}
    for key, value in entries.items():
        if name in ("*", key) and (place := _given_at(value, rest)) is not None:
            return [str(key), *place]
    return None


_IN_YAML = {"tuple_type": "must be a list", "dict_type": "must be a mapping", "model_type": "must be a mapping"}
"""Error texts by the kind of error, in place of pydantic's texts about Python types."""


def problems_in(error: ValidationError, section: type[BaseModel]) -> str:
    """Return all problems in one line. `section`: the model that was validated."""
    return "; ".join(_problem(problem, section) for problem in error.errors())


def _problem(error: ErrorDetails, section: type[BaseModel]) -> str:
    """Return one problem: the key, the given value unless it may be secret, and the allowed values."""
    key = ".".join(map(str, error["loc"]))
    siblings, field = _place(error["loc"], section)
    given, kind = error["input"], error["type"]
    # A URL may contain a password before the @, and a key after the ?.
    is_secret = field is not None and SecretStr in (field.annotation, *get_args(field.annotation))
    open_to_all = field is not None and not is_secret and not set(str(given)) & {"@", "?", "#"}
    got = f" (got {given!r})" if open_to_all and isinstance(given, str | int | float) else ""
    if kind == "extra_forbidden":
        return f"{key} is not a setting{meant(str(error['loc'][-1]), siblings)}; known there: {', '.join(siblings)}"
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}{got}" if key else str(error["ctx"]["error"])
    return f"{key}: {_IN_YAML.get(kind, error['msg'])}{got}"


def meant(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return a suggestion for a mistyped name, or an empty string. `likeness`: minimum similarity, 0 to 1."""
    like = get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f" (did you mean {like[0]}?)" if like else ""


def _place(loc: tuple[int | str, ...], section: type[BaseModel]) -> tuple[Mapping[str, FieldInfo], FieldInfo | None]:
    """Return the fields at the level of `loc`, and the field itself, or None if it does not exist."""
    siblings: Mapping[str, FieldInfo] = section.model_fields
    field = None
    for name in (part for part in loc if isinstance(part, str)):
        if field is not None:
            kinds = (field.annotation, *get_args(field.annotation))
            sections = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
            siblings = next((section.model_fields for section in sections), {})
        field = siblings.get(name)
    return siblings, field
