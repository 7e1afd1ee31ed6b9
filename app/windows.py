"""Context windows: what the operator says of a model, else what is known of it, else a guess that is flagged."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from app.core.budget import Window
from app.settings import ModelSettings

DEFAULT = Window(128_000, "default")

BUNDLED = (
    ("gpt-5-chat*", Window(128_000, "bundled", max_output=16_384)),
    ("gpt-5*", Window(400_000, "bundled", max_input=272_000, max_output=128_000)),
    ("gpt-4.1*", Window(1_047_576, "bundled", max_output=32_768)),
    ("gpt-4.5*", Window(128_000, "bundled", max_output=16_384)),
    ("gpt-4o*", Window(128_000, "bundled", max_output=16_384)),
    ("gpt-4-turbo*", Window(128_000, "bundled", max_output=4_096)),
    ("gpt-4-*-preview", Window(128_000, "bundled", max_output=4_096)),
    ("gpt-4-32k*", Window(32_768, "bundled")),
    ("gpt-4", Window(8_192, "bundled")),
    ("gpt-4-*", Window(8_192, "bundled")),
    ("gpt-3.5-turbo*", Window(16_385, "bundled", max_output=4_096)),
    ("o1-mini*", Window(128_000, "bundled", max_output=65_536)),
    ("o[134]*", Window(200_000, "bundled", max_output=100_000)),
)
"""OpenAI's families, from its model pages; the first match wins."""


def window_of(model: str, configured: Iterable[ModelSettings]) -> Window:
    """The first match of the model's name, with or without the part before its last slash; settings come first."""
    settings = (
        (m.match, Window(m.context_window, "config", m.max_input_tokens, m.max_output_tokens)) for m in configured
    )
    short = model.rsplit("/", 1)[-1]
    for pattern, window in (*settings, *BUNDLED):
        if fnmatchcase(model, pattern) or fnmatchcase(short, pattern):
            return window
    return DEFAULT
