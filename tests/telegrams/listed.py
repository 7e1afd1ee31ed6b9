"""A plugin for pytest: in its process the list of formats has one more, and nothing else is different."""

from __future__ import annotations

import sys

from app.wire import formats
from tests.telegrams.telegrams import TELEGRAMS

formats.FORMATS = (*formats.FORMATS, TELEGRAMS)

from tests.telegrams import samples  # noqa: E402 - whatever reads the list is imported behind this

sys.modules["tests.conformance.telegrams"] = samples
