"""What the documentation shows really goes over the wire: each recording is made again. `make examples` writes them."""

from __future__ import annotations

import json
import re
from typing import Any

from app.api import openapi
from app.compaction.view import ACTIONS
from tests.e2e import rest_recordings
from tests.e2e.stream_recordings import CASES, FOLDER, FORMATS, SHAPES, file_of, recorder
from tests.shown_examples import SCHEMA, recorded_rest

REST = FOLDER.parent / "rest.md"
ANEW = "{} is stale: make examples writes it anew, if it is meant to have changed"
EVENTS = {"compaction_started", "compaction_completed", "compaction_failed"}


def test_what_is_recorded_is_what_comes_now() -> None:
    with recorder() as made:
        recorded = made.all()
    for file, text in recorded.items():
        assert file.read_text() == text, ANEW.format(file.name)


def test_answers_of_the_rest_interface_are_those_that_come_now() -> None:
    assert rest_recordings.record() == recorded_rest(), ANEW.format("app/api/examples.json")


def test_every_route_that_answers_is_recorded() -> None:
    assert rest_recordings.every_route(json.loads(SCHEMA.read_text())) == set(rest_recordings.ROUTES)


def test_each_recording_is_in_the_index_and_nothing_else_is_recorded() -> None:
    named = re.findall(r"`(\w+\.txt)`", (FOLDER / "README.md").read_text())
    told = {FOLDER / written.name / name for written in FORMATS for name in named}
    assert told == {file_of(written, case) for written in FORMATS for case in CASES} == set(FOLDER.rglob("*.txt"))


def test_events_have_the_members_that_the_documentation_lists() -> None:
    table = REST.read_text().partition("### Events")[2].partition("### Shapes")[0]
    listed = set(re.findall(r"`(\w+)`", table.partition("| | type | in which event |")[2].partition("\n\n")[0]))
    assert set(re.findall(r"^\| `(compaction_\w+)` \|", table, re.MULTILINE)) == EVENTS
    seen: set[str] = set()
    for written in FORMATS:
        for shape in (*SHAPES, "failed"):
            for event in events_in((FOLDER / written.name / f"{shape}.txt").read_text()):
                assert event["type"].removeprefix("context.") in EVENTS
                seen |= event.keys() | (event.get("messages", {}).keys() - set(ACTIONS))
    in_context = openapi.SCHEMAS["Context"]["properties"].keys()
    assert seen - in_context == listed - in_context - {"context", "forwarded", "saved"}


def events_in(text: str) -> list[dict[str, Any]]:
    """The events of a recording, in whatever shape they stand."""
    decoder = json.JSONDecoder()
    starts = re.finditer(r'\{"type":"(?:context\.)?compaction_', text)
    return [decoder.raw_decode(text, found.start())[0] for found in starts]
