"""Parts that are no text: pictures, files and recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.history.messages import Media
from app.wire.declared import text_at
from app.wire.documents import file_of
from app.wire.media import pixels
from app.wire.media import seconds as seconds_of

KINDS = {"input_image": "image", "computer_screenshot": "image", "input_file": "file", "input_audio": "audio"}
HOLDING = ("image_url", "file_data", "file_url", "file_id", "data")
"""Members that hold what the part is, or say where it is."""


def read_media(part: Mapping[str, Any]) -> Media:
    """A part that is no text, whatever it holds."""
    type_ = text_at(part, "type")
    kind = KINDS.get(type_, type_)
    inner = part.get("input_audio")
    members = inner if isinstance(inner, dict) else part
    size = sum(len(text_at(members, name)) for name in HOLDING)
    width = height = 0
    seconds = 0.0
    if kind == "file" and (data := text_at(members, "file_data")):
        return file_of(data, size)
    if kind == "image" and (url := text_at(members, "image_url")).startswith("data:"):
        width, height = pixels(url)
    elif kind == "audio":
        seconds = seconds_of(text_at(members, "data"), text_at(members, "format"))
    return Media(kind, size, text_at(members, "detail"), width, height, seconds)
