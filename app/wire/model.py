"""The model that a body names which is not read any further: in every format it stands at the same place."""

from __future__ import annotations

import msgspec

from app.core.tokens.rules import LONGEST_MODEL
from app.wire.surrogates import decoded


def model_in(body: bytes) -> str:
    """Empty if that cannot be known."""
    try:
        model = decoded(body, _decode).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return model if len(model) <= LONGEST_MODEL else ""


class _Named(msgspec.Struct):
    """Other members are skipped, whatever they hold."""

    model: str = ""


_decode = msgspec.json.Decoder(_Named).decode
