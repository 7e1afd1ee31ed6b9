"""An answer in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Content:
    """An answer in one piece."""

    body: bytes
    content_type: str = JSON
    status: int = 200


def json_content(value: Any, status: int = 200) -> Content:
    return Content(msgspec.json.encode(value), status=status)
