"""The endpoints beside chat: enough of each to see whether a proxy relays it untouched."""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lab.simulator.content import Content, json_content
from lab.simulator.listings import Shape, entry, native
from lab.simulator.log import Record
from lab.simulator.refusals import (
    Refused,
    missing,
    no_such_method,
    no_such_model,
    no_such_path,
    unreadable,
)
from lab.simulator.replies import EPOCH
from lab.simulator.rules import Model

DIMENSIONS = 8
SPEECH = b"ID3\x04" + bytes(range(256)) * 64

_FILENAME = re.compile(rb'filename="([^"]*)"')


def respond(record: Record, models: Iterable[Model], window: int, shape: Shape) -> Content:
    """The answer of any endpoint but chat. `shape` is how models are listed."""
    path = record.path
    if (own := native(path, models, window, shape)) is not None:
        return json_content(own)
    if path == "/v1/echo":
        return _echo(record)
    if path == "/v1/models" or path.startswith("/v1/models/"):
        _require_method(record, "GET")
        return _models(path.removeprefix("/v1/models").removeprefix("/"), models, window, shape)
    respond_to_post = _POSTS.get(path)
    if respond_to_post is None:
        raise Refused(no_such_path(record.method, path))
    _require_method(record, "POST")
    return respond_to_post(record)


def _require_method(record: Record, method: str) -> None:
    if record.method != method:
        raise Refused(no_such_method(record.method, record.path))


def _models(name: str, models: Iterable[Model], window: int, shape: Shape) -> Content:
    listed = {model.name: entry(model, window, shape) for model in models}
    if not name:
        return json_content({"object": "list", "data": list(listed.values())})
    if name not in listed:
        raise Refused(no_such_model(name))
    return json_content(listed[name])


def _echo(record: Record) -> Content:
    return json_content(
        {
            "method": record.method,
            "target": record.target,
            "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in record.headers],
            "sha256": hashlib.sha256(record.body).hexdigest(),
            "length": len(record.body),
        }
    )


def _file(record: Record) -> Content:
    if not (record.header("content-type") or "").startswith("multipart/form-data"):
        raise Refused(missing("file"))
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


def _speech(record: Record) -> Content:
    payload = _object(record)
    for name in ("model", "input", "voice"):
        if name not in payload:
            raise Refused(missing(name))
    return Content(SPEECH, "audio/mpeg")


def _embeddings(record: Record) -> Content:
    payload = _object(record)
    for name in ("model", "input"):
        if name not in payload:
            raise Refused(missing(name))
    given = payload["input"]
    inputs = given if isinstance(given, list) else [given]
    as_text = payload.get("encoding_format") == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": _vector(str(text), as_text)}
        for index, text in enumerate(inputs)
    ]
    tokens = sum(len(str(text).split()) for text in inputs)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json_content({"object": "list", "data": data, "model": payload["model"], "usage": usage})


def _vector(text: str, as_text: bool) -> str | list[float]:
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    vector = [byte / 255 for byte in digest[:DIMENSIONS]]
    if as_text:
        return base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *vector)).decode()
    return vector


def _object(record: Record) -> Mapping[str, Any]:
    if not isinstance(record.payload, dict):
        raise Refused(unreadable())
    return record.payload


_POSTS: Mapping[str, Callable[[Record], Content]] = {
    "/v1/files": _file,
    "/v1/audio/speech": _speech,
    "/v1/embeddings": _embeddings,
}
