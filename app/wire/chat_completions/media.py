"""Content parts that are no text, whatever they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.history.messages import Media
from app.wire.declared import text_at
from app.wire.documents import file_of
from app.wire.media import pixels
from app.wire.media import seconds as seconds_of

KINDS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "file": "file"}


def read_media(part: Mapping[str, Any]) -> Media:
    """A content part that is no text, whatever it holds."""
    type_ = text_at(part, "type")
    kind = KINDS.get(type_, type_)
    held = part.get("image_url" if kind == "image" else type_)
    members = held if isinstance(held, dict) else {"url": held, "detail": part.get("detail")}
    size = sum(len(value) for value in members.values() if isinstance(value, str))
    width = height = 0
    seconds = 0.0
    match kind, members:
        case "image", {"url": str(url)} if url.startswith("data:"):
            width, height = pixels(url)
        case "file", {"file_data": str(data)} if data:
            return file_of(data, size)
        case "audio", {"data": str(data)}:
            seconds = seconds_of(data, text_at(members, "format"))
    return Media(kind, size, text_at(members, "detail"), width, height, seconds)
