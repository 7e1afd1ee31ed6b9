"""Discovery: the windows that a provider announces itself, in whichever way it does.

`/v1/models` is asked for everywhere. Its entries tell the window under several names: `max_model_len` (vLLM, SGLang),
`context_length` and `top_provider` (OpenRouter), `context_window` and `max_completion_tokens` (Groq),
`max_context_length` (Mistral), `context_size` (Novita), `capabilities.limits` (GitHub Copilot), `model_spec` (Venice),
`metadata` (DeepInfra), an object `context_window` (Poe), `meta.n_ctx` (llama.cpp), `max_input_tokens` and `max_tokens`
(Anthropic), and for each of several hosts in `providers` (the router of Hugging Face). Some servers tell more, or only,
on paths of their own; they are known by what they list and nobody else is asked there:

- LM Studio, `/api/v0/models`: what a model is loaded with, else the most it can be loaded with.
- llama.cpp, `/props`: the context of one slot. `n_ctx_train` is what the model was trained with, not what it has.
- Ollama, `/api/ps`: what a model is loaded with. One that is not loaded gets `num_ctx` of its Modelfile
  (`/api/show`), or what it was last loaded with, or Ollama's least default: it cuts longer prompts in silence, so a
  guess too small does less harm than one too large. Models that Ollama runs elsewhere have all that they can.
- TabbyAPI, `/v1/model`: what the model is loaded with that answers whatever is asked for.
- LiteLLM, `/v1/model/info`: the windows of the models behind its names.
- Gemini, `/v1beta/models`, of which `/v1beta/openai` lists only names.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from app.core.limits.budget import Window
from app.errors import StenoError
from app.formats.members import holds_more_values
from app.http.relayed import with_missing
from app.http.upstream import Headers, Upstream
from app.tokens.rules import LONGEST_MODEL
from app.tokens.usage import MOST_TOKENS

Entry = Mapping[str, Any]

CONTEXT_NAMES = (
    "context_window",
    "max_model_len",
    "context_length",
    "max_context_length",
    "max_context_window_tokens",
    "context_size",
    "availableContextTokens",
    "max_seq_len",
)
INPUT_NAMES = ("max_prompt_tokens", "max_input_tokens", "inputTokenLimit")
OUTPUT_NAMES = ("max_completion_tokens", "max_output_tokens", "maxCompletionTokens", "outputTokenLimit")
HOLDERS = ("top_provider", "model_spec", "metadata", "parameters", "model_info", "context_window")
"""Members of an entry that may be objects with such names."""
LITELLM_CREATED = 1_677_610_602
"""Time at which LiteLLM says that every model was created, whichever it is."""
USUAL_PATHS = ("/api/v1", "/openai/v1", "/v1beta/openai")
"""Paths at which OpenRouter, Groq and Azure, and Gemini have what others have below `/v1`."""
LEAST_CONTEXT = 256
"""Tokens; less is no context of a model that chats."""
OLLAMA_DEFAULT = 4_096
"""Window with which Ollama loads a model on a small machine; more memory or OLLAMA_CONTEXT_LENGTH make it more."""
MOST_SHOWN = 64
"""Models of an Ollama that are asked about one by one."""
AT_ONCE = 4
"""Most models asked about at once; each answer may take 4 MB."""
MOST_HOSTS = 20
"""Most hosts of a model that are read."""
MOST_ENTRIES = 3_000
"""Models of a list that are read; the longest lists have some hundreds."""
PAGE = 1_000
"""Models asked for at once, where a list comes in pages."""
MOST_VALUES = 200_000
"""Most values of an answer that is decoded. The longest lists have a quarter of that."""
LONGEST_NUMBER = 20
"""Digits that are read; Python refuses to read 4,300."""
_NUM_CTX = re.compile(r"^num_ctx\s+(\S+)", re.MULTILINE)
_DIGITS = re.compile(r"[0-9]{1,9}")


class ListingRefused(Exception):
    """The provider is there, and answers with this status when it is asked for its models; with 200, but no JSON."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status

    @property
    def wants_key(self) -> bool:
        return self.status in (401, 403)


class ModelListing(Struct, frozen=True):
    """List of models, as a provider gave it."""

    models: Mapping[str, Window | None]
    """Windows by the provider's names; None where it does not name the window."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names that the models answer to."""
    any_name: Window | None = None
    """The window of a server that ignores which model is asked for."""
    changes: bool = False
    """Windows depend on how a model is loaded at the moment."""

    def beside(self, other: ModelListing, most: int) -> ModelListing:
        """Combine the list with another one, which is left out if both are too long together."""
        models = dict(other.models) | {
            name: window for name, window in self.models.items() if window or name not in other.models
        }
        if len(models) > most:
            return self
        return ModelListing(
            models,
            dict(other.aliases) | dict(self.aliases),
            self.any_name or other.any_name,
            self.changes or other.changes,
        )

    def of(self, model: str) -> Window | None:
        window = self.models.get(model) or self.models.get(self.aliases.get(model.lower(), ""))
        return window or self.any_name


class Discovery:
    """Asks one provider. What a model was loaded with is remembered."""

    def __init__(self, upstream: Upstream, path: str, seconds: float, asked_with: Headers = ()) -> None:
        """`path` is the base URL's; `seconds` bounds each question; `asked_with` is said in each, unless it is."""
        self._upstream = upstream
        self._path = path
        self._root = path.removesuffix("/v1")
        self._seconds = seconds
        self._asked_with = asked_with
        self._shown: dict[str, tuple[str | float | None, Window]] = {}
        """Time of the last change of each model that is not loaded, and its window since."""
        self._loaded: dict[str, int] = {}

    async def listing(self, headers: Headers = ()) -> ModelListing:
        """Raises `ListingRefused` or the upstream errors."""
        headers = self._complete(headers)
        answer = await self._upstream.ask(b"/v1/models", headers, self._seconds)
        if _object(answer.body).get("has_more") is True:  # Anthropic's list comes in pages of 20.
            answer = await self._upstream.ask(b"/v1/models?limit=%d" % PAGE, headers, self._seconds)
        if answer.status != 200 or _decoded(answer.body) is None:
            raise ListingRefused(answer.status)
        entries = {name: entry for entry in _entries(answer.body, "data") if (name := _name(entry, "id"))}
        windows = _windows(entries)
        listing = ModelListing(windows, _aliases(windows))
        owners = {owner for entry in entries.values() if isinstance(owner := entry.get("owned_by"), str)}
        try:
            if "llamacpp" in owners:
                return await self._llama_cpp(listing, headers)
            if "organization_owner" in owners:
                return await self._lm_studio(listing, headers)
            if "library" in owners:
                return await self._ollama(listing, entries, headers)
            if "tabbyAPI" in owners:
                return await self._tabby(listing, headers)
            if any(entry.get("created") == LITELLM_CREATED for entry in entries.values()):
                return await self._litellm(listing, headers)
            if "google" in owners and self._path.endswith("/openai"):
                return await self._gemini(listing, headers)
        except StenoError:
            pass  # What /v1/models says stands.
        return listing

    async def elsewhere(self, headers: Headers = ()) -> str | None:
        """The path at which the provider's host has an API, where the base URL's own path has none."""
        headers = self._complete(headers)
        # The upstream puts the base URL's path in place of the first /v1.
        below = {} if self._path.endswith("/v1") else {f"{self._path}/v1": "/v1/v1"}
        for path, target in (below | {path: path for path in USUAL_PATHS if path != self._path}).items():
            try:
                answer = await self._upstream.ask(f"{target}/models".encode(), headers, self._seconds)
            except StenoError:
                continue
            content = _decoded(answer.body)
            lists = answer.status == 200 and any(_name(entry, "id") for entry in _entries(answer.body, "data"))
            if lists or (answer.status in (401, 403) and isinstance(content, dict) and "error" in content):
                return path
        return None

    def _complete(self, headers: Headers) -> Headers:
        headers = with_missing(list(headers), self._asked_with)
        return [*headers, (b"accept", b"application/json"), (b"accept-encoding", b"identity")]

    async def _llama_cpp(self, listing: ModelListing, headers: Headers) -> ModelListing:
        if len(listing.models) != 1:
            return listing  # A router before several servers.
        [(name, window)] = listing.models.items()
        if window is None:
            props = _object(await self._body("/props", headers))
            settings = props.get("default_generation_settings")
            window = _window(_number(settings, ("n_ctx",))) if isinstance(settings, dict) else None
        return replace(listing, models={name: window}, any_name=window)

    async def _tabby(self, listing: ModelListing, headers: Headers) -> ModelListing:
        loaded = _object(await self._body("/v1/model", headers))
        name, window = _name(loaded, "id"), announced(loaded)
        models = dict(listing.models) | ({name: window} if name else {})
        return replace(listing, models=models, any_name=window, changes=True)

    async def _litellm(self, listing: ModelListing, headers: Headers) -> ModelListing:
        """Windows in LiteLLM's list. One name may stand for several deployments: any of them may answer."""
        windows = dict(listing.models)
        for entry in _entries(await self._asked("/v1/model/info", headers), "data"):
            name, window = _name(entry, "model_name"), announced(entry)
            if name in windows and window is not None:
                known = windows[name]
                windows[name] = window if known is None or window.context < known.context else known
        return replace(listing, models=windows)

    async def _gemini(self, listing: ModelListing, headers: Headers) -> ModelListing:
        """Headers for Gemini's own API, which takes the key in a header of its own."""
        keys = [value.removeprefix(b"Bearer ") for name, value in headers if name == b"authorization"]
        rest = [(name, value) for name, value in headers if name != b"authorization"]
        headers = with_missing(rest, [(b"x-goog-api-key", key) for key in keys])
        path = f"{self._path.removesuffix('/openai')}/models?pageSize={PAGE}"
        windows = dict(listing.models)
        for entry in _entries(await self._asked(path, headers), "models"):
            if (name := _name(entry, "name")) and (window := announced(entry)):
                windows[name] = window
        return replace(listing, models=windows)

    async def _lm_studio(self, listing: ModelListing, headers: Headers) -> ModelListing:
        windows = dict(listing.models)
        for entry in _entries(await self._body("/api/v0/models", headers), "data"):
            loaded, most = _number(entry, ("loaded_context_length",)), _number(entry, ("max_context_length",))
            note = None if loaded else "not loaded; the most it can be loaded with"
            if (name := _name(entry, "id")) and (window := _window(loaded or most, note)):
                windows[name] = window
        return replace(listing, models=windows, changes=True)

    async def _ollama(self, listing: ModelListing, entries: Mapping[str, Entry], headers: Headers) -> ModelListing:
        loaded = {}
        for entry in _entries(await self._body("/api/ps", headers), "models"):
            if (name := _name(entry, "name")) and (context := _number(entry, ("context_length",))):
                loaded[name] = context
        self._loaded = {name: context for name, context in self._loaded.items() if name in entries} | loaded
        self._shown = {name: shown for name, shown in self._shown.items() if name in entries}
        rest = [name for name in listing.models if name not in loaded][:MOST_SHOWN]
        windows: dict[str, Window | None] = {name: _window(context) for name, context in loaded.items()}
        turns = asyncio.Semaphore(AT_ONCE)

        async def look(name: str) -> Window:
            async with turns:
                return await self._not_loaded(name, entries[name], headers)

        shown = await asyncio.gather(*map(look, rest))
        windows |= dict(zip(rest, shown, strict=True))
        return replace(listing, models=dict(listing.models) | windows, changes=True)

    async def _not_loaded(self, name: str, entry: Entry, headers: Headers) -> Window:
        if name in self._loaded:
            return Window(self._loaded[name], "provider", note="not loaded; as it was when last seen")
        created = entry.get("created")  # Ollama's time of the last change.
        changed = created if isinstance(created, str | int | float) else None
        since, window = self._shown.get(name, (None, None))
        if window is None or since != changed:
            body = await self._body("/api/show", headers, msgspec.json.encode({"model": name}))
            window = _ollama_window(_object(body))
            self._shown[name] = changed, window
        return window

    async def _body(self, path: str, headers: Headers, body: bytes = b"") -> bytes:
        """Body of the answer at a path beside the base URL's."""
        return await self._asked(self._root + path, headers, body)

    async def _asked(self, target: str, headers: Headers, body: bytes = b"") -> bytes:
        answer = await self._upstream.ask(target.encode(), headers, self._seconds, body)
        return answer.body if answer.status == 200 else b""


def announced(entry: Entry) -> Window | None:
    """The window that an entry of /v1/models names; of several numbers the smallest."""
    limits = _inside(_inside(entry, "capabilities"), "limits")
    places = (entry, *(_inside(entry, name) for name in HOLDERS), limits)
    contexts = [number for place in places if (number := _number(place, CONTEXT_NAMES))]
    if (slot := _number(_inside(entry, "meta"), ("n_ctx",))) is not None:
        contexts.append(slot)
    most_input = next((number for place in places if (number := _number(place, INPUT_NAMES))), None)
    most_output = next((number for place in places if (number := _number(place, OUTPUT_NAMES, least=1))), None)
    if not contexts and most_input and not most_output:
        most_output = _number(entry, ("max_tokens",), least=1)  # Elsewhere that may mean the window.
    context = min(contexts, default=most_input)
    if context is None:
        return None
    return Window(
        context,
        "provider",
        max_input=most_input if most_input and most_input < context else None,
        max_output=most_output if most_output and most_output < context else None,
    )


def _windows(entries: Mapping[str, Entry]) -> dict[str, Window | None]:
    """An adapter that vLLM serves on top of a model (`parent`) has that model's window."""
    windows = {name: announced(entry) for name, entry in entries.items()}
    windows |= {
        name: window if window is not None else windows.get(_name(entries[name], "parent") or "")
        for name, window in windows.items()
    }
    for name, entry in entries.items():
        hosts = _windows_of_hosts(entry)
        if hosts and windows[name] is None:  # Any of them may be chosen.
            windows[name] = min(hosts.values(), key=lambda window: window.context)
        windows |= {f"{name}:{host}": window for host, window in hosts.items()}
    return windows


def _windows_of_hosts(entry: Entry) -> dict[str, Window]:
    """Windows of the hosts behind a router, as far as given, each of which can be asked for by its name."""
    listed = entry.get("providers")
    hosts = listed[:MOST_HOSTS] if isinstance(listed, list) else []
    return {
        host: window
        for one in hosts
        if isinstance(one, dict) and one.get("status", "live") == "live"
        if (host := _name(one, "provider")) and (window := announced(one))
    }


def _aliases(names: Iterable[str]) -> dict[str, str]:
    """Names without the part that a provider lets clients leave out: Ollama's `:latest`, Gemini's `models/`."""
    return {
        spelled: name
        for name in names
        for spelled in (name.lower(), name.lower().removesuffix(":latest").removeprefix("models/"))
    }


def _ollama_window(shown: Entry) -> Window:
    parameters, info = shown.get("parameters"), _inside(shown, "model_info")
    trained = next(
        (number for name in info if name.endswith(".context_length") and (number := _number(info, (name,)))), None
    )
    given = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    if given and (context := _plausible(given[1])) is not None:
        return Window(max(context, LEAST_CONTEXT), "provider", note="not loaded; as its Modelfile says")
    if shown.get("remote_host") and trained:
        return Window(trained, "provider")
    return Window(min(OLLAMA_DEFAULT, trained or OLLAMA_DEFAULT), "provider", note="not loaded; Ollama's least default")


def _window(context: int | None, note: str | None = None) -> Window | None:
    return None if context is None else Window(context, "provider", note=note)


def _entries(body: bytes, member: str) -> list[dict[str, Any]]:
    """The list's first objects. Together's list has no object around it."""
    content = _decoded(body)
    listed = content.get(member) if isinstance(content, dict) else content
    return [entry for entry in listed[:MOST_ENTRIES] if isinstance(entry, dict)] if isinstance(listed, list) else []


def _object(body: bytes) -> dict[str, Any]:
    content = _decoded(body)
    return content if isinstance(content, dict) else {}


def _decoded(body: bytes) -> object:
    """None if it is no JSON, or too much. One number or one name that is none does not make the rest unreadable."""
    if holds_more_values(body, MOST_VALUES):
        return None
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        pass
    try:
        text = body.decode("utf-8", "replace")
        return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < LONGEST_NUMBER else None)
    except (ValueError, RecursionError):
        return None


def _inside(entry: Entry, name: str) -> Entry:
    inner = entry.get(name)
    return inner if isinstance(inner, dict) else {}


def _name(entry: Entry, member: str) -> str | None:
    """The model's name, if it can be one: shown to clients, sent to the provider."""
    name = entry.get(member)
    return name if isinstance(name, str) and len(name) <= LONGEST_MODEL and name.isprintable() and name else None


def _number(entry: Entry, names: Sequence[str], least: int = LEAST_CONTEXT) -> int | None:
    """First of these members that holds a plausible number, also as text."""
    numbers = (_plausible(entry.get(name)) for name in names)
    return next((number for number in numbers if number is not None and number >= least), None)


def _plausible(value: object) -> int | None:
    """A whole number of tokens, also written as text; larger ones would not fit the database either."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
