"""Cases: files of YAML, and what is played of each: every format, whole and streamed. The README says how they read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from tests.exchanges.histories import Format

FOLDER = Path(__file__).parent / "cases"
FORMATS: tuple[Format, ...] = ("chat", "messages", "responses", "gemini")
MODES: tuple[Mode, ...] = ("whole", "streamed")
DATABASES = ("sqlite",)
FILE_KEYS = frozenset({"about", "cases", "formats", "modes", "databases", "settings", "environment", "provider",
                       "fresh", "totals", "expect", "request", "requests", "unchecked", "recorded"})  # fmt: skip
Mode = Literal["whole", "streamed"]
Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Variant:
    """A case in one format and mode, on one database."""

    topic: str
    name: str
    format: Format
    mode: Mode
    database: str
    spec: Spec
    """Keys of the case, with the choices made that depend on format and mode."""

    @property
    def id(self) -> str:
        database = "" if self.database == "sqlite" else f"-{self.database}"
        return f"{self.topic}/{self.name}-{self.format}-{self.mode}{database}"

    @property
    def slug(self) -> str:
        """Part of its model and its key: what Steno learns in one case must not reach another.

        The two modes and the databases, which never share a Steno, have the same, so that their recordings agree.
        """
        return "v" + sha256(f"{self.topic}/{self.name}-{self.format}".encode()).hexdigest()[:10]

    @property
    def is_recorded(self) -> bool:
        return self.format != "gemini" and bool(self.spec.get("recorded", True))

    @property
    def requests(self) -> list[Spec]:
        return list(_expanded(self.spec))


def variants() -> Iterator[Variant]:
    """All that is played, in the order of files and cases."""
    for path in sorted(FOLDER.rglob("*.yaml")):
        topic = str(path.parent.relative_to(FOLDER))
        for name, spec in cases_in(path).items():
            yield from _variants(topic, name, spec)


def cases_in(path: Path) -> dict[str, Spec]:
    """Cases of a file by name: the file's own, or the small ones under `cases`, each laid over the file's keys."""
    with path.open(encoding="utf-8") as file:
        written = yaml.load(file, yaml.CSafeLoader)
    if unknown := set(written) - FILE_KEYS - REQUEST_KEYS:
        raise ValueError(f"{path}: unknown keys {sorted(unknown)}")
    small = written.pop("cases", None)
    if small is None:
        return {path.stem: written}
    return {f"{path.stem}/{name}": laid_over(written, spec or {}) for name, spec in small.items()}


REQUEST_KEYS = frozenset({
    "history", "grow", "tools", "functions", "model", "members", "without", "headers", "path", "method",
    "get", "post", "put", "patch", "delete", "json", "body", "raw", "key", "answers", "summaries", "expect", "last",
    "save", "until", "settled", "repeat",
})  # fmt: skip
"""Keys of a request. A case with one request may name them beside its own."""


def laid_over(below: Any, above: Any) -> Any:
    """Two mappings as one; what stands above wins."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{key: laid_over(below.get(key), value) for key, value in above.items()}}
    return above


def _variants(topic: str, name: str, spec: Spec) -> Iterator[Variant]:
    for format_ in spec.get("formats", [format_ for format_ in FORMATS if _names(spec, format_)]):
        for mode in spec.get("modes", MODES):
            chosen = cast("Spec", _chosen(spec, format_, mode))
            for database in spec.get("databases", DATABASES):
                yield Variant(topic, name, format_, mode, database, chosen)


def _names(value: Any, format_: str) -> bool:
    """True if every `by_format` has a choice for the format."""
    if isinstance(value, Mapping):
        choices = value.get("by_format", {"other": None})
        return (format_ in choices or "other" in choices) and all(_names(inner, format_) for inner in value.values())
    return not isinstance(value, list) or all(_names(inner, format_) for inner in value)


def _chosen(value: Any, format_: str, mode: str) -> Any:
    """Value with each `by_format` and `by_mode` replaced by what it says for these, or for `other`."""
    if isinstance(value, Mapping):
        for key, actual in (("by_format", format_), ("by_mode", mode)):
            if key in value:
                choices = value[key]
                return _chosen(choices[actual] if actual in choices else choices["other"], format_, mode)
        return {key: _chosen(inner, format_, mode) for key, inner in value.items()}
    return [_chosen(inner, format_, mode) for inner in value] if isinstance(value, list) else value


def _expanded(spec: Spec) -> Iterator[Spec]:
    """Requests of a case in order: `grow` and `repeat` are several."""
    given = spec.get("requests")
    own = {key: value for key, value in spec.items() if key in REQUEST_KEYS - {"expect"}}
    for request in [own] if given is None else given:
        if unknown := set(request) - REQUEST_KEYS:
            raise ValueError(f"A request has no key {sorted(unknown)}: {request}")
        whole = laid_over(spec.get("request", {}), request)
        checked = {**whole, "expect": laid_over(spec.get("expect", {}), whole.get("expect") or {})}
        if whole.get("get") or whole.get("method") or whole.get("raw"):
            # What a case expects of every answer is about answers of the model.
            checked["expect"] = whole.get("expect") or {}
        yield from _repeated(checked)


def _repeated(request: Spec) -> Iterator[Spec]:
    last = request.get("last")
    base = {key: value for key, value in request.items() if key not in ("grow", "repeat", "last")}
    growth = request.get("grow")
    if growth is None:
        made = [base] * int(request.get("repeat", 1))
    else:
        options = {key: value for key, value in growth.items() if key not in ("from", "to", "by", "count")}
        counted = growth.get("count", "turns")
        lengths = range(int(growth["from"]), int(growth["to"]) + 1, int(growth.get("by", 1)))
        made = [{**base, "history": _grown(options, counted, length)} for length in lengths]
    if last is not None:
        made[-1] = {**made[-1], "expect": laid_over(made[-1]["expect"], last)}
    yield from made


def _grown(options: Mapping[str, Any], counted: str, length: int) -> Any:
    if "history" in options:
        # `$` in an explicit history stands for the number.
        return json.loads(json.dumps(options["history"]).replace('"$"', str(length)))
    return {counted: length, **options}
