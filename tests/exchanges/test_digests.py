"""Digests are pinned: a history that gets another one is summarised once more, for every user."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.exchanges.answers import compact
from tests.exchanges.cases import laid_over
from tests.exchanges.playing import SETTINGS, Stages, http_request

FOLDER = Path(__file__).parent / "digests"
CHANGED = (
    "These histories have other digests than before: each stored summary of such a conversation is lost, and its user"
    " waits for another one. If that has to be, give the reason in CHANGELOG.md, and write the new ids into {file}:"
)


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in sorted(FOLDER.glob("*.json"))])
def test_digests_of_histories_stay(path: Path, stages: Stages) -> None:
    """The id of a conversation that nobody knows is a digest of its whole history, its tenant and the secret. A plan
    tells it, and stores nothing."""
    histories: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    changed = dict(_changed(path.stem, histories, stages))
    assert not changed, "\n".join(
        (CHANGED.format(file=path.name), *(f"  {name}: {id_}" for name, id_ in changed.items()))
    )


def _changed(format_: str, histories: Mapping[str, Any], stages: Stages) -> Iterator[tuple[str, str]]:
    for name, history in histories.items():
        expected, ignore = history["conversation"], history.get("ignore", [])
        stage = stages.stage(laid_over(SETTINGS, {"identity": {"ignore": ignore}}))
        members = {key: value for key, value in history.items() if key in ("messages", "input", "contents")}
        body = compact({"format": format_, "model": "any", "max_tokens": 5, **members})
        headers = {"authorization": "Bearer sk-digests", "content-type": "application/json"}
        answer = stage.send(http_request("POST", "/context/plan", headers, body))
        found = answer.json["context"]["conversation_id"] if answer.status == 200 else answer.body.decode()
        if found != expected:
            yield name, found
