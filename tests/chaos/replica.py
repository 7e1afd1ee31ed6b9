"""`steno serve` for the chaos: no message is left out for want of room, and nothing is learnt of the provider's counts.

python -m tests.chaos.replica serve ...
"""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from app.cli import main as cli
from app.providers.calibrations import Calibrations
from app.settings.presets import PRESETS


def main() -> None:
    # What is not summarised goes out whole, so a message that is missing is a gap.
    cast("dict[str, Any]", PRESETS)["default"] = replace(PRESETS["default"], policy={"prune": False})
    # Each process would learn for itself, and would see the trigger elsewhere than the others.
    Calibrations.is_due = lambda *_: False  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    main()
