"""Lists of models as different servers write them, with the paths of their own that tell more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from lab.simulator.replies import EPOCH
from lab.simulator.rules import Model

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
