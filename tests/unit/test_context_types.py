"""The types in `examples`: they have the members of the wire schema, and take every recorded answer and stream."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from app.api.openapi import SCHEMAS
from examples import context_types
from examples.context_types import Context, Status

ROOT = Path(__file__).parents[2]
DECLARATIONS = ROOT / "examples" / "context_types.d.ts"
RECORDED = sorted((ROOT / "docs" / "streams").rglob("*/*.txt"))
INSTALLED = ROOT / ".clients"
TSC = INSTALLED / "node_modules" / ".bin" / "tsc"
GIVEN = {
    "openai-node": """import OpenAI from "openai";
declare const client: OpenAI;
declare const messages: OpenAI.ChatCompletionMessageParam[];
""",
    "anthropic": """import Anthropic from "@anthropic-ai/sdk";
declare const claude: Anthropic;
declare const messages: Anthropic.MessageParam[];
""",
}
"""Beginning of the programs with TypeScript, by their page."""
TYPES = {name: kind for name, kind in vars(context_types).items() if hasattr(kind, "__required_keys__")}

Members = Mapping[str, bool]
"""Names of members, and whether each is always there."""


def members_of(kind: Any) -> Members:
    return {name: name in kind.__required_keys__ for name in kind.__annotations__}


def described(schema: Mapping[str, Any]) -> Members:
    return {name: name in schema.get("required", ()) for name in schema["properties"]}


def declared() -> dict[str, Members]:
    """Interfaces in the file for TypeScript, with what they inherit."""
    found: dict[str, Members] = {}
    for name, parent, body in re.findall(
        r"^export interface (\w+)(?: extends (\w+))? \{\n(.*?)^\}", DECLARATIONS.read_text(), re.MULTILINE | re.DOTALL
    ):
        own = re.findall(r"^  (\w+)(\??):", body, re.MULTILINE)
        found[name] = {**found.get(parent, {}), **{member: not optional for member, optional in own}}
    return found


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each recorded object with the name of its type."""
    for path in RECORDED:
        answered = path.read_text().partition("\n\nHTTP/1.1 ")[2].partition("\n\n")[2]
        data = re.findall(r"^data: (\{.*)$", answered, re.MULTILINE) or [answered]
        for frame in map(json.loads, data):
            if "context" in frame:
                yield "Context", frame["context"]
            event = frame if "compaction_" in frame.get("type", "") else frame.get("compaction")
            if event:
                yield "CompactionStarted" if event["type"].endswith("started") else "CompactionEnded", event


def test_types_have_the_members_of_the_wire_schema() -> None:
    assert members_of(Context) == described(SCHEMAS["Context"])
    assert get_args(Status) == tuple(SCHEMAS["Context"]["properties"]["status"]["enum"])
    assert members_of(TYPES["Tokens"]) == described(SCHEMAS["Tokens"])


def test_both_languages_have_the_same_types() -> None:
    interfaces = declared()
    assert {name: interfaces[name] for name in TYPES} == {name: members_of(kind) for name, kind in TYPES.items()}
    assert {*interfaces} - {*TYPES} == {"WithContext", "WithCompaction"}


def test_types_take_every_recorded_answer() -> None:
    seen = set()
    for name, value in objects():
        msgspec.convert(value, TYPES[name], strict=True)
        assert {*value} <= {*members_of(TYPES[name])}
        seen.add(name)
    assert seen == {"Context", "CompactionStarted", "CompactionEnded"}


@pytest.mark.skipif(not TSC.exists(), reason="make clients installs tsc")
def test_typescript_takes_the_recorded_answers_and_the_pages() -> None:
    with tempfile.TemporaryDirectory(dir=INSTALLED) as name:  # There tsc finds the SDKs.
        folder = Path(name)
        (folder / "context_types.ts").write_text(DECLARATIONS.read_text())
        values = [
            f"export const value{number}: types.{kind} = {json.dumps(value)};"
            for number, (kind, value) in enumerate(objects())
        ]
        (folder / "recorded.ts").write_text('import type * as types from "./context_types.js";\n' + "\n".join(values))
        for page, given in GIVEN.items():
            text = (ROOT / "docs" / "clients" / f"{page}.md").read_text()
            [block] = re.findall(r"^```typescript\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
            (folder / f"{page}.ts").write_text(given + block)
        options = ["--strict", "--noEmit", "--target", "esnext", "--module", "esnext", "--skipLibCheck"]
        checked = subprocess.run(  # noqa: S603 - our own pages
            [TSC, *options, *sorted(folder.glob("*.ts"))], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout
