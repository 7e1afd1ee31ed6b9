"""Rules for an assistant in eight languages, and sentences that only look like them (`wordings.yaml`)."""

from __future__ import annotations

from pathlib import Path

import yaml

_WORDINGS: dict[str, dict[str, list[str]]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
RULES, TALES = _WORDINGS["rules"], _WORDINGS["tales"]
