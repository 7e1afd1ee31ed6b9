"""Fetch tiktoken's two encoding tables from a hash-checked wheel, so that counting tokens needs no download later.

    python scripts/fetch_tables.py [--optional] [FOLDER]

Standard library and pip only: it also runs in the image build, before anything else is installed.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "tables.txt"
FOLDER_IN_WHEEL = "llama_index/core/_static/tiktoken_cache"

# tiktoken looks a table up by the SHA-1 of its public address; the values are the SHA-256 of the content.
O200K_BASE = "fb374d419588a4632f3f557e76b4b70aebbca790"
CL100K_BASE = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
TABLES = {
    O200K_BASE: "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    CL100K_BASE: "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}


class FetchError(Exception):
    """The tables could not be had; the message says why."""


def matches(content: bytes, digest: str) -> bool:
    return hashlib.sha256(content).hexdigest() == digest


def complete(folder: Path) -> bool:
    return all((folder / name).is_file() and matches((folder / name).read_bytes(), TABLES[name]) for name in TABLES)


def download_wheel(folder: Path) -> Path:
    # Few retries: without a network a start should be late by seconds, not by minutes.
    command = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-input"]
    command += ["--retries", "2", "--timeout", "20", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--requirement", str(LOCK), "--dest", str(folder)]
    if subprocess.run(command, check=False).returncode != 0:
        raise FetchError("pip could not download the package that holds them")
    return next(folder.glob("*.whl"))


def write(path: Path, content: bytes) -> None:
    """Write beside the target and rename: a reader never sees half a table."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, zipfile.ZipFile(download_wheel(Path(temporary))) as wheel:
        for name, digest in TABLES.items():
            content = wheel.read(f"{FOLDER_IN_WHEEL}/{name}")
            if not matches(content, digest):
                raise FetchError(f"{name} is not the table it should be")
            write(folder / name, content)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch tiktoken's encoding tables.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".tables")
    parser.add_argument("--optional", action="store_true", help="a failure is a warning: Steno can start without")
    arguments = parser.parse_args()
    if complete(arguments.folder):
        return 0
    try:
        fetch(arguments.folder)
    except (FetchError, OSError, KeyError, zipfile.BadZipFile) as error:
        print(f"No token tables in {arguments.folder}: {error}.", file=sys.stderr)
        if not arguments.optional:
            return 1
        print("Steno runs without them and estimates tokens from bytes; the next start tries again.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
