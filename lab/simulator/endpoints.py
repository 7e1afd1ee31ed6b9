"""The endpoints beside chat: enough of each to see whether a proxy relays it untouched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from lab.simulator.format import Content, json_content
from lab.simulator.log import Record
from lab.simulator.refusals import (
    Refused,
    missing,
    no_such_method,
    no_such_model,
    no_such_path,
)
from lab.simulator.replies import EPOCH
from lab.simulator.rules import Model

_FILENAME = re.compile(rb'filename="([^"]*)"')


def respond(record: Record, models: Iterable[Model], window: int, shape: Shape) -> Content:
    """The answer of any endpoint but chat. `shape` is how models are listed."""
    path = record.path
    if (own := native(path, models, window, shape)) is not None:
        return json_content(own)
    if path == "/v1/models" or path.startswith("/v1/models/"):
        _require_method(record, "GET")
        return _models(path.removeprefix("/v1/models").removeprefix("/"), models, window, shape)
    if path != "/v1/files":
        raise Refused(no_such_path(record.method, path))
    _require_method(record, "POST")
    return _file(record)


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


# Lists of models as different servers write them, with the paths of their own that tell more

Shape = Literal["plain", "vllm", "openrouter", "groq", "mistral", "llamacpp", "lmstudio", "ollama", "silent"]

TRAINED = 131_072
"""Window that local servers' models could have, were they loaded with it."""


def entry(model: Model, window: int, shape: Shape) -> dict[str, Any]:
    """A model as `/v1/models` lists it."""
    size = model.window or window
    owner, told = _ENTRIES[shape]
    return {"id": model.name, "object": "model", "created": EPOCH, "owned_by": owner, **told(size)}


_ENTRIES: Mapping[Shape, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "plain": ("simulator", lambda size: {"context_window": size}),
    "vllm": ("vllm", lambda size: {"max_model_len": size, "parent": None}),
    "openrouter": (
        "simulator",
        lambda size: {
            "context_length": TRAINED,
            "top_provider": {"context_length": size, "max_completion_tokens": size // 4, "is_moderated": False},
        },
    ),
    "groq": ("Simulator", lambda size: {"active": True, "context_window": size, "max_completion_tokens": size}),
    "mistral": ("mistralai", lambda size: {"capabilities": {"completion_chat": True}, "max_context_length": size}),
    "llamacpp": ("llamacpp", lambda _: {"meta": {"n_ctx_train": TRAINED}}),
    "lmstudio": ("organization_owner", lambda _: {}),
    "ollama": ("library", lambda _: {}),
    "silent": ("simulator", lambda _: {}),
}


def native(path: str, models: Iterable[Model], window: int, shape: Shape) -> dict[str, Any] | None:
    """Answer of a server of that shape on a path of its own; None: it has no such path."""
    match shape, path:
        case "llamacpp", "/props":
            return {"default_generation_settings": {"n_ctx": window}, "total_slots": 1}
        case "lmstudio", "/api/v0/models":
            loaded = {"type": "llm", "state": "loaded", "max_context_length": TRAINED}
            return {
                "data": [
                    {"id": model.name, **loaded, "loaded_context_length": model.window or window} for model in models
                ]
            }
        case "ollama", "/api/ps":
            return {"models": [{"name": model.name, "context_length": model.window or window} for model in models]}
    return None
