"""Check without a network that the lock files fit pyproject.toml and each other, and name no host."""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN = PROJECT["project"]["dependencies"]
GROUPS = PROJECT["dependency-groups"]

# What `make lock` compiles into each file.
LOCKS = {
    "run": RUN,
    "dev": [*RUN, *GROUPS["test"], *GROUPS["lint"], *GROUPS["build"], *GROUPS["docs"]],
    "build": GROUPS["build"],
    "tables": GROUPS["tables"],
}


def read(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.txt").read_text()


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9.-]+)(?:\[[^]]*\])?==(\S+)", text, re.MULTILINE))


def unmet(requirements: Iterable[str], locked: dict[str, str]) -> Iterator[str]:
    for requirement in map(Requirement, requirements):
        version = locked.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement} is asked for, locked is {version}"


def problems() -> Iterator[str]:
    for name, requirements in LOCKS.items():
        text = read(name)
        yield from (f"requirements/{name}.txt: {problem}" for problem in unmet(requirements, pins(text)))
        if re.search(r"://|^-", text, re.MULTILINE):
            yield f"requirements/{name}.txt names a host, a path or an option"
    if re.search(r"://", (ROOT / "tests" / "clients" / "package-lock.json").read_text()):
        yield "tests/clients/package-lock.json names a host: npm install --omit-lockfile-registry-resolved"
    run, dev = pins(read("run")), pins(read("dev"))
    for name, version in run.items():
        if dev.get(name) != version:
            yield f"{name} is {version} in requirements/run.txt and {dev.get(name)} in requirements/dev.txt"
    if GROUPS["build"] != PROJECT["build-system"]["requires"]:
        yield "the build group differs from [build-system] requires"


def main() -> int:
    found = list(problems())
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        print("Run `make lock`.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
