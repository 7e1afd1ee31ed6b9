"""The upstream and the load client, compiled: with the system's compiler, or with one from the package registry."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from lab.benchmarks.relay.environments import Missing, python_environment

SOURCES = Path(__file__).parent / "native"
PROGRAMS = ("upstream", "load")


def compiled(folder: Path, compiler: Callable[[Path], list[str]] | None = None) -> Path:
    """The folder that holds both programs; raises `Missing` where nothing can compile them."""
    text = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    target = folder / f"native-{hashlib.sha256(text).hexdigest()[:12]}"
    if all((target / name).exists() for name in PROGRAMS):
        return target
    target.mkdir(parents=True, exist_ok=True)
    command = (compiler or a_compiler)(folder)
    for name in PROGRAMS:
        # Renamed when it is whole: another run may compile beside this one.
        partial = target / f"{name}.{os.getpid()}"
        arguments = [*command, "-O2", "-o", str(partial), str(SOURCES / f"{name}.c")]
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)  # noqa: S603 - a compiler
        if done.returncode:
            raise Missing(f"{name}.c does not compile: {done.stderr.strip()[-300:]}")
        partial.replace(target / name)
    return target


def a_compiler(folder: Path) -> list[str]:
    """`cc` where there is one, else Zig's, which comes as a Python package."""
    if shutil.which("cc"):
        return ["cc"]
    return [str(python_environment(folder, "compiler") / "bin" / "python"), "-m", "ziglang", "cc"]
