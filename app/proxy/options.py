"""Options: what a request says about its own compaction, in its body, its headers and its base URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import inf

import structlog

from app.errors import InvalidRequest
from app.headers.relayed import Headers, value_of
from app.proxy.caller import Caller
from app.proxy.naming import name_in_header, name_in_json
from app.proxy.services import Services
from app.settings import UpstreamSettings
from app.settings.policies import AppliedPolicy, read_preset, read_trigger
from app.wire.format import EVENT_SHAPES, EventShape, WireRequest

log = structlog.get_logger("steno.intake")

NAMING_HEADERS = ("x-context-conversation-id", "x-conversation-id")
SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
ANNOUNCED_TIMEOUTS = (b"x-stainless-read-timeout", b"x-stainless-timeout")
"""How long a client waits, in seconds: openai-python's, and openai-node's, which is rounded down."""
PATIENCE_SHARE = 0.8
"""Of the timeout a client announces, what a compaction may use."""


def rules_of(services: Services, at: UpstreamSettings, request: WireRequest, caller: Caller) -> AppliedPolicy:
    """By which rules it is compacted. Raises `InvalidRequest` for a preset or a trigger that is none."""
    options = request.options
    in_body, in_header = options.get("preset"), value_of(caller.headers, b"x-context-preset")
    preset = read_preset(in_body) if in_body else read_preset(in_header, "x-context-preset")
    return services.policies.of(at, request.model, preset, read_trigger(options.get("trigger")))


def name_of(services: Services, request: WireRequest, caller: Caller) -> str | None:
    """The conversation's name, from the first place that has one.

    Raises `InvalidRequest` for one that cannot be used. Where it stands in what other tools or the provider decide
    about, the caller could not mend it: that place names nothing then, and the log says why.
    """
    for is_ours, read in _places(services, request, caller):
        try:
            if (name := read()) is not None:
                return name
        except InvalidRequest as error:
            if is_ours:
                raise
            if (count := services.repeats.again(f"name in {error.param}")) is not None:
                log.warning("a conversation's id was ignored", reason=error.message, times=count)
    return None


def _places(
    services: Services, request: WireRequest, caller: Caller
) -> Iterator[tuple[bool, Callable[[], str | None]]]:
    """Where a name may stand, the first choice first: whether it is meant for Steno there, and how it is read."""
    identity = services.naming
    for header in (*NAMING_HEADERS, *identity.session_headers):
        if (value := value_of(caller.headers, header.encode())) is not None:
            yield header in NAMING_HEADERS, partial(name_in_header, header, value)
    for member, given in request.names:
        yield True, partial(name_in_json, member, given)
    yield True, lambda: caller.conversation
    for used, named in ((identity.use_prompt_cache_key, request.cache_key), (identity.use_user, request.end_user)):
        if used and named is not None:
            yield False, partial(name_in_json, *named)


def is_switched_off(request: WireRequest, headers: Headers) -> bool:
    """Raises `InvalidRequest` for a header that says neither."""
    header = (value_of(headers, b"x-context-compaction") or "on").lower()
    if header not in SWITCHES:
        told = f"x-context-compaction must be one of {', '.join(SWITCHES)}; it is {header!r:.100}."
        raise InvalidRequest(told, "x-context-compaction")
    return request.options.get("compaction") is False or not SWITCHES[header]


def event_shape(request: WireRequest, headers: Headers, usual: EventShape) -> EventShape:
    """In which shape a stream tells of a compaction before the answer; `off`: not at all."""
    asked = value_of(headers, b"x-context-events")
    shape = next((shape for shape in EVENT_SHAPES if shape == asked), usual)
    # With several choices nothing may be sent early: a role chunk of ours would belong to one of them only.
    return shape if request.stream and request.choices == 1 else "off"


def wait_seconds(rules: AppliedPolicy, events: EventShape, headers: Headers) -> float:
    """How long a compaction may hold the request; without keep-alives less than the client says it will wait."""
    wait = rules.compaction.wait_seconds
    if events != "off":
        return wait
    announced = (announced_seconds(value_of(headers, name)) for name in ANNOUNCED_TIMEOUTS)
    return min([wait, *(PATIENCE_SHARE * seconds for seconds in announced if seconds is not None)])


def announced_seconds(told: str | None) -> float | None:
    """A header's number of seconds; None where it holds none."""
    try:
        seconds = float(told or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < inf else None
