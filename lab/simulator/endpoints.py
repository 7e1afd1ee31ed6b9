"""The endpoints beside chat: enough of each to see whether a proxy relays it untouched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from lab.simulator.format import Content, json_content
from lab.simulator.log import Record
from lab.simulator.refusals import missing, no_such_method, no_such_model, no_such_path
from lab.simulator.replies import EPOCH
from lab.simulator.rules import Model

_FILENAME = re.compile(rb'filename="([^"]*)"')


def respond(record: Record, models: Iterable[Model], window: int) -> Content:
    path = record.path
    if path == "/v1/models" or path.startswith("/v1/models/"):
        _require_method(record, "GET")
        return _models(path.removeprefix("/v1/models").removeprefix("/"), models, window)
    if path != "/v1/files":
        raise no_such_path(record.method, path)
    _require_method(record, "POST")
    return _file(record)


def _require_method(record: Record, method: str) -> None:
    if record.method != method:
        raise no_such_method(record.method, record.path)


def _models(name: str, models: Iterable[Model], window: int) -> Content:
    shared = {"object": "model", "created": EPOCH, "owned_by": "simulator"}
    listed = {each.name: {"id": each.name, **shared, "context_window": each.window or window} for each in models}
    if not name:
        return json_content({"object": "list", "data": list(listed.values())})
    if name not in listed:
        raise no_such_model(name)
    return json_content(listed[name])


def _file(record: Record) -> Content:
    if not (record.header("content-type") or "").startswith("multipart/form-data"):
        raise missing("file")
    named = _FILENAME.search(record.body)
    return json_content(
        {
            "id": f"file-{record.sequence:012d}",
            "object": "file",
            "bytes": len(record.body),
            "created_at": EPOCH + record.sequence,
            "filename": named[1].decode("utf-8", "replace") if named else "",
            "purpose": "user_data",
            "status": "processed",
            "sha256": hashlib.sha256(record.body).hexdigest(),
        }
    )
