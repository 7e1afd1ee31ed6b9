"""Environments: what a subject needs, installed apart from Steno and from each other, in the versions of `peers/`."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
INSTALL_SECONDS = 900


class Missing(Exception):
    """Reason why something cannot be measured here."""


def python_environment(folder: Path, name: str) -> Path:
    """A virtual environment with what `peers/NAME.txt` lists, made if need be."""
    requirements = PEERS / f"{name}.txt"
    target = folder / name
    stamp, wanted = target / ".made-from", hashlib.sha256(requirements.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return target
    print(f"installing {name}", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(target)], folder)
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
    _run([*pip, "--no-deps", "--requirement", str(requirements)], folder)
    stamp.write_text(wanted)
    return target


def version(environment: Path, package: str) -> str:
    """Version of a Python package that is installed there."""
    found = sorted(environment.glob(f"lib/python*/site-packages/{package.replace('-', '_')}-*.dist-info"))
    return found[0].name.removesuffix(".dist-info").partition("-")[2] if found else "unknown"


def _run(command: list[str], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(  # noqa: S603 - pip, npm and what makes an environment
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if done.returncode:
        raise Missing(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}")


# The upstream and the load client, compiled

SOURCES = Path(__file__).parent / "native"
PROGRAMS = ("upstream", "load")


def compiled(folder: Path) -> Path:
    """The folder that holds both programs; raises `Missing` where nothing can compile them."""
    text = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    target = folder / f"native-{hashlib.sha256(text).hexdigest()[:12]}"
    if all((target / name).exists() for name in PROGRAMS):
        return target
    if shutil.which("cc") is None:
        raise Missing("there is no C compiler (cc)")
    target.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        # Renamed when it is whole: another run may compile beside this one.
        partial = target / f"{name}.{os.getpid()}"
        arguments = ["cc", "-O2", "-o", str(partial), str(SOURCES / f"{name}.c")]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)  # noqa: S603 - a compiler
        if done.returncode:
            raise Missing(f"{name}.c does not compile: {done.stderr.strip()[-300:]}")
        partial.replace(target / name)
    return target
