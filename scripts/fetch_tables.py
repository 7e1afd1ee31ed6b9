"""Fetch the token tables before Steno is installed: in a checkout, and for the image.

    python scripts/fetch_tables.py [--optional] [FOLDER]

An installed Steno has `steno tables` for it. Standard library and pip only.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from app.tokens.tokenizer import TablesUnavailable, fetch, missing_in  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch tiktoken's encoding tables.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".tables")
    parser.add_argument("--optional", action="store_true", help="a failure is a warning: Steno can start without")
    arguments = parser.parse_args()
    if not missing_in(arguments.folder):
        return 0
    try:
        fetch(arguments.folder)
    except TablesUnavailable as error:
        print(f"No token tables in {arguments.folder}: {error}.", file=sys.stderr)
        if not arguments.optional:
            return 1
        print("Steno runs without them and estimates tokens from bytes; the next start tries again.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
