"""docs/openapi.json is the schema that Steno serves, and its examples fit it; pages show what was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import jsonschema_rs
import pytest

from app.api import openapi
from app.compaction.decision import Status
from app.formats.compaction_events import EVENT_SHAPES
from app.formats.paths import COUNTS, FORMATS
from app.formats.requests import OPTIONS
from app.http.credentials import CREDENTIALS
from tests.shown_examples import ROOT, SCHEMA, recorded_rest, written_files

AS_COMMITTED: dict[str, Any] = json.loads(SCHEMA.read_text())


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in AS_COMMITTED["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_schema_examples_and_pages_are_what_is_made_of_the_recorded_answers() -> None:
    made = written_files(recorded_rest())
    stale = [str(file.relative_to(ROOT)) for file, text in made.items() if file.read_text() != text]
    assert stale == [], "stale: make examples writes them anew"
    assert ROOT / "docs" / "rest.md" in made


@pytest.mark.parametrize(
    ("route", "operation"), list(operations()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_example_fits_its_schema(route: str, operation: dict[str, Any]) -> None:
    contents = [operation["requestBody"]["content"]] if "requestBody" in operation else []
    contents += [answer["content"] for answer in operation["responses"].values() if "content" in answer]
    shown = [media for content in contents for media in content.values() if "example" in media]
    for media in shown:
        part = {**media["schema"], "components": AS_COMMITTED["components"]}  # Its references are to these.
        jsonschema_rs.Draft202012Validator(part).validate(media["example"])
    assert shown or not route.startswith(("GET /context", "POST /context", "DELETE /context"))


def test_the_schema_knows_every_path_of_a_format() -> None:
    paths = {format_.path.decode() for format_ in FORMATS} | {path.decode() for path in COUNTS}
    assert openapi.PROXIED.keys() == paths


def test_the_schema_knows_every_option_and_status() -> None:
    assert set(openapi.SCHEMAS["ContextOptions"]["properties"]) == set(OPTIONS)
    assert openapi.PARAMETERS["x-context-events"]["schema"]["enum"] == list(EVENT_SHAPES)
    assert set(get_args(Status)) | {"pending", "bypassed"} == set(openapi.HEADERS["x-context-status"]["schema"]["enum"])


def test_a_key_that_the_schema_names_is_one_that_steno_reads() -> None:
    schemes = AS_COMMITTED["components"]["securitySchemes"]
    assert schemes["bearer"]["scheme"] == "bearer"
    assert schemes["key"]["name"].encode() in CREDENTIALS
    for route, operation in operations():
        assert operation["security"] == ([] if route in HEALTH else [{"bearer": []}, {"key": []}, {}]), route


HEALTH = {"GET /livez", "GET /readyz", "GET /healthz", "GET /metrics"}
