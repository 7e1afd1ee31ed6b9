"""Options of a request about its own compaction, in its body, its headers and its base URL."""

from __future__ import annotations

from app.errors import InvalidRequest
from app.formats.requests import WireRequest
from app.formats.sse import EVENT_SHAPES, EventShape
from app.http import own_headers
from app.proxy.caller import Caller
from app.settings.policies import AppliedPolicy, Policies
from app.settings.presets import PRESET_NAMES, PresetName

PATIENCE_SHARE = 0.8
"""Share of the timeout a client announces that a compaction may use."""
SILENCE_SHARE = 1 / 3
"""Share of that timeout for which a stream may be silent: one keep-alive may be late."""
KEEP_ALIVE_SECONDS = 10.0
"""Seconds between keep-alives for a client that announces no timeout: less than any proxy on the way waits."""
LEAST_SILENCE = 1.0
"""Seconds between keep-alives, whatever a client announces."""


def rules_of(policies: Policies, wire: WireRequest, caller: Caller) -> AppliedPolicy:
    """Return the rules of its compaction. Raises `InvalidRequest` for a preset that is none."""
    options = wire.wishes.options
    in_header = caller.header(own_headers.PRESET)
    preset = read_preset(options.get("preset")) or read_preset(in_header, own_headers.PRESET.decode())
    return policies.of(wire.model, preset)


def read_preset(name: object, param: str = "context.preset") -> PresetName | None:
    """Preset that a request names; None if it names none. Raises `InvalidRequest`, which says where (`param`)."""
    if name is None:
        return None
    for known in PRESET_NAMES:
        if name == known:
            return known
    raise InvalidRequest(f"There is no preset {name!r:.100}. Known: {', '.join(PRESET_NAMES)}.", param)


def wants_compaction(wire: WireRequest, caller: Caller) -> bool:
    """True unless the caller wants nothing done to its history."""
    return caller.allows_compaction and wire.wishes.options.get("compaction") is not False


def event_shape(wire: WireRequest, caller: Caller, usual: EventShape) -> EventShape:
    """Shape in which a stream announces a compaction before the answer; `off`: not at all. Raises `InvalidRequest` for
    a header that names none."""
    asked = caller.header(own_headers.EVENTS)
    shape = usual if asked is None else next((shape for shape in EVENT_SHAPES if shape == asked.lower()), None)
    if shape is None:
        name = own_headers.EVENTS.decode()
        raise InvalidRequest(f"{name} must be one of {', '.join(EVENT_SHAPES)}; it is {asked!r:.100}.", name)
    # With several choices nothing may be sent early: a role chunk of ours would belong to one of them only.
    if not wire.answer.stream or wire.answer.choices != 1:
        return "off"
    return shape


def wait_seconds(rules: AppliedPolicy, events: EventShape, caller: Caller) -> float:
    """Seconds that a compaction may hold the request; without keep-alives less than the client says it will wait."""
    wait = rules.compaction.wait_seconds
    return wait if events != "off" else min(wait, PATIENCE_SHARE * caller.patience)


def keep_alive_seconds(caller: Caller) -> float:
    """Seconds of silence after which a keep-alive is due: less than usual if the client announces that it waits for
    less."""
    return min(KEEP_ALIVE_SECONDS, max(LEAST_SILENCE, SILENCE_SHARE * caller.patience))
