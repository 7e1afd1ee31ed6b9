"""Listings: the models and windows that a provider announces at `/v1/models`, read regularly.

The entries name the window in several ways: `max_model_len` (vLLM, SGLang), `context_length` and `top_provider`
(OpenRouter), `context_window` and `max_completion_tokens` (Groq), `max_context_length` (Mistral), `context_size`
(Novita), `capabilities.limits` (GitHub Copilot), `model_spec` (Venice), `metadata` (DeepInfra), an object
`context_window` (Poe), `meta.n_ctx` (llama.cpp), `max_input_tokens` and `max_tokens` (Anthropic).

Some servers have more details at other paths. Steno asks only servers that it recognises by their list:

- LM Studio, `/api/v0/models`: the window that a model is loaded with, else the largest window that it can have.
- llama.cpp, `/props`: the context of one slot. `n_ctx_train` is the window in training, not the server's.
- Ollama, `/api/ps`: the window that a model is loaded with. For a model that is not loaded: the window of its last
  load, `num_ctx` of its Modelfile (`/api/show`), or Ollama's smallest default. Ollama cuts longer prompts without an
  error, so too small a window is better than too large a window. Models on a remote host have their trained window.
- LiteLLM, `/v1/model/info`: the windows of the deployments behind each name.
- Gemini, `/v1beta/models`: the windows; `/v1beta/openai` lists only names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog
from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.budget import Window
from app.errors import StenoError, UpstreamTimedOut
from app.formats.raw_json import holds_more_values, object_of
from app.formats.refusals import decoded_body
from app.http.credentials import CREDENTIALS
from app.http.headers import with_missing
from app.http.upstream import Headers, Upstream
from app.runtime.tasks import OwnedTasks
from app.settings import UpstreamSettings
from app.tokens.costs import MOST_TOKENS
from app.tokens.counting_rules import LONGEST_MODEL

log = structlog.get_logger("steno.windows")

REFRESH_SECONDS = 3600.0
REFRESH_CHANGING_SECONDS = 60.0
"""Seconds between two listings if the windows depend on how models are loaded."""
RETRY_SECONDS = 300.0
ASK_SECONDS = 5.0
"""Timeout of one answer, in seconds."""
FETCH_SECONDS = 10.0
"""Timeout of all answers of one listing together, in seconds."""
WAIT_SECONDS = 1.0
"""Seconds from the start of the first listing during which client requests may wait for this listing."""
MOST_LISTED = 10_000
"""Maximum number of models in one provider's merged listings."""
MOST_ENTRIES = 3_000
"""Maximum number of models read from one list. The longest lists have some hundreds."""
PAGE = 1_000
"""Models per page, if a list has pages."""
MOST_VALUES = 200_000
"""Maximum number of JSON values in an answer that Steno decodes. The longest lists have a quarter of this number."""
MOST_SHOWN = 64
"""Maximum number of models about which Steno asks an Ollama server, one by one, for a listing."""
LEAST_CONTEXT = 256
"""Fewest tokens that Steno reads as a window. Chat models have larger windows."""
OLLAMA_DEFAULT = 4_096
"""Window in tokens with which Ollama loads a model on a machine with little memory."""
ASKED_WITH = CREDENTIALS | {b"anthropic-version"}
"""Headers on which the provider's list may depend."""

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
"""Members of an entry that may be objects. Such an object may name the window in its own members."""
LITELLM_CREATED = 1_677_610_602
"""Value of `created` that LiteLLM gives every model. By this value Steno recognises LiteLLM."""
_NUM_CTX = re.compile(r"^num_ctx\s+(\S+)", re.MULTILINE)
_DIGITS = re.compile(r"[0-9]{1,9}")

Entry = Mapping[str, Any]


class ListingRefused(Exception):
    """The provider did not list its models. `status` is the answer's status; 200 means that the body was not JSON."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status

    @property
    def wants_key(self) -> bool:
        return self.status in (401, 403)


class ModelListing(Struct, frozen=True):
    models: Mapping[str, Window | None]
    """Windows by model name; None if the list does not contain the window."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Model names by their aliases in lower case."""
    any_name: Window | None = None
    """Window of all models, if the server ignores the model's name."""
    changes: bool = False
    """Whether windows depend on how models are loaded at the moment."""
    simulated: bool = False
    """Whether the provider says that it is a simulator."""

    def merged(self, other: ModelListing) -> ModelListing:
        """Merge with another listing. Return this listing unchanged if both together exceed `MOST_LISTED` models."""
        models = dict(other.models) | {
            name: window for name, window in self.models.items() if window or name not in other.models
        }
        if len(models) > MOST_LISTED:
            return self
        aliases = dict(other.aliases) | dict(self.aliases)
        return ModelListing(models, aliases, self.any_name or other.any_name, self.changes or other.changes)

    def of(self, model: str) -> Window | None:
        window = self.models.get(model) or self.models.get(self.aliases.get(model.lower(), ""))
        return window or self.any_name


ListingOutcome = ModelListing | ListingRefused | StenoError


class ModelListings:
    """Listings of one provider. This class decides when Steno asks the provider, and with whose key."""

    def __init__(
        self,
        at: UpstreamSettings,
        upstream: Upstream,
        tasks: OwnedTasks,
        clock: Callable[[], float] = monotonic,
        default_headers: Headers = (),
    ) -> None:
        """`default_headers` are sent with each listing request, unless the client's headers have them."""
        self._at = at
        self._tasks = tasks
        self._clock = clock
        self._reader = ListingReader(upstream, urlsplit(at.base_url).path, default_headers)
        self._asking: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._due = 0.0
        self._wants_key = False
        self.open_names: frozenset[str] = frozenset()
        """Names that the provider lists without a client's key. All tenants may see them."""
        self.listing: ModelListing | None = None
        """The latest listing, with the models that the provider listed for clients' keys."""
        self.latest_outcome: ListingOutcome | None = None
        """Latest listing or error that Steno could read; None before the first."""

    def start(self) -> None:
        """Ask the provider for its models without credentials, now and at each refresh."""
        if self._at.discover_windows:
            self._ask(())
            self._tasks.start(self._refresh(), "windows")

    @property
    def is_current(self) -> bool:
        return not self._at.discover_windows or (self.listing is not None and not self._wants_key)

    async def wait_for_first(self, headers: Headers) -> None:
        """Wait at most a second for the first listing.

        If the provider wants a key, Steno sends the credentials in the client's `headers`, and does not store them.
        """
        is_due = self._wants_key and self._clock() >= self._due
        if is_due and (credentials := [(name, value) for name, value in headers if name in ASKED_WITH]):
            self._ask(credentials)
        if self.listing is None and self._asking is not None:
            left = self._asked_at + WAIT_SECONDS - self._clock()
            if left > 0:
                await asyncio.wait({self._asking}, timeout=left)

    async def fetch(self, headers: Headers = (), *, is_client_key: bool = False) -> ListingOutcome:
        """Ask the provider for its models now. Names listed for a client's key do not become `open_names`."""
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                listing = await self._reader.read(headers)
        except TimeoutError:
            return UpstreamTimedOut("The provider did not list its models in time.")
        except (ListingRefused, StenoError) as error:
            return error
        if not is_client_key:
            self.open_names, self.listing = frozenset(listing.models), listing
        else:  # The provider may list other models to another key.
            self.listing = listing.merged(self.listing) if self.listing else listing
        return listing

    async def first_outcome(self) -> ListingOutcome | None:
        """Wait for the provider's first answer. Return None if Steno does not ask, or could not read the answer."""
        if self._asking is not None:
            await asyncio.wait({self._asking})
        return self.latest_outcome

    def _ask(self, headers: Headers) -> asyncio.Task[None]:
        """Ask the provider for its models in the background, unless a listing is under way."""
        if self._asking is None or self._asking.done():
            self._asked_at = self._clock()
            self._due = self._asked_at + RETRY_SECONDS
            self._asking = self._tasks.start(self._try(headers), "windows")
        return self._asking

    async def _try(self, headers: Headers) -> None:
        """Ask for the models, and set the time of the next listing. Some providers have no list, or want a key."""
        pause = RETRY_SECONDS
        try:
            outcome = self.latest_outcome = await self.fetch(headers, is_client_key=bool(headers))
        except Exception:
            log.exception("the provider's list of models was not understood")
        else:
            if isinstance(outcome, ModelListing):
                pause = REFRESH_CHANGING_SECONDS if outcome.changes else REFRESH_SECONDS
            elif isinstance(outcome, ListingRefused) and outcome.wants_key and self._at.api_key_env is None:
                self._wants_key = True
                # The next client's key may be accepted.
                pause = RETRY_SECONDS if headers else 0.0
        self._due = self._clock() + pause

    async def _refresh(self) -> None:
        """Ask for the models at each refresh until a key is needed. Then `wait_for_first` asks with a client's key."""
        while not self._wants_key:
            await asyncio.wait({self._ask(())})
            await asyncio.sleep(self._due - self._clock())


class ListingReader:
    """Reads one provider's list. Remembers the windows with which Ollama loaded its models."""

    def __init__(self, upstream: Upstream, path: str, default_headers: Headers = ()) -> None:
        """`path` is the path of the base URL."""
        self._upstream = upstream
        self._path = path
        self._root = path.removesuffix("/v1")
        self._default_headers = default_headers
        self._seen: dict[str, Window] = {}
        """Last known windows of Ollama's models, used while a model is not loaded."""

    async def read(self, headers: Headers = ()) -> ModelListing:
        """Read the list, and paths that only some servers have. Raises `ListingRefused` or the upstream errors."""
        headers = with_missing(list(headers), self._default_headers)
        headers = [*headers, (b"accept", b"application/json"), (b"accept-encoding", b"identity")]
        status, content = await self._ask("/v1/models", headers)
        if object_of(content).get("has_more") is True:  # Anthropic's list comes in pages of 20.
            status, content = await self._ask(f"/v1/models?limit={PAGE}", headers)
        if status != 200 or not isinstance(content, dict | list):
            raise ListingRefused(status)
        if isinstance(object_of(content).get("models"), list) and "data" not in object_of(content):
            return await self._gemini(ModelListing({}, {}), headers, f"/v1beta/models?pageSize={PAGE}")
        entries = {name: entry for entry in _entries(content, "data") if (name := _name(entry, "id"))}
        own = {name: announced(entry) for name, entry in entries.items()}
        # An adapter that vLLM serves on a model (`parent`) has the model's window.
        windows = {name: own[name] or own.get(_name(entry, "parent") or "") for name, entry in entries.items()}
        # Clients may omit Ollama's `:latest` and Gemini's `models/`.
        aliases = {name.lower().removesuffix(":latest").removeprefix("models/"): name for name in windows}
        aliases |= {name.lower(): name for name in windows}
        owners = {owner for entry in entries.values() if isinstance(owner := entry.get("owned_by"), str)}
        listing = ModelListing(windows, aliases, simulated=owners == {"simulator"})
        try:
            if "llamacpp" in owners:
                return await self._llama_cpp(listing, headers)
            if "organization_owner" in owners:
                return await self._lm_studio(listing, headers)
            if "library" in owners:
                return await self._ollama(listing, headers)
            if any(entry.get("created") == LITELLM_CREATED for entry in entries.values()):
                return await self._litellm(listing, headers)
            if "google" in owners and self._path.endswith("/openai"):
                path = f"{self._path.removesuffix('/openai')}/models?pageSize={PAGE}"
                return await self._gemini(listing, headers, path)
        except StenoError:
            pass  # The windows from /v1/models apply.
        return listing

    async def _llama_cpp(self, listing: ModelListing, headers: Headers) -> ModelListing:
        if len(listing.models) != 1:
            return listing  # The server is a router in front of several servers.
        [(name, window)] = listing.models.items()
        if window is None:
            props = object_of(await self._read(self._root + "/props", headers))
            window = _window(_number(object_of(props.get("default_generation_settings")), ("n_ctx",)))
        return replace(listing, models={name: window}, any_name=window)

    async def _litellm(self, listing: ModelListing, headers: Headers) -> ModelListing:
        """Use the smallest window of a name's deployments, because any deployment may answer."""
        windows = dict(listing.models)
        for entry in _entries(await self._read("/v1/model/info", headers), "data"):
            name, window = _name(entry, "model_name"), announced(entry)
            if name in windows and window is not None:
                known = windows[name]
                windows[name] = window if known is None or window.context < known.context else known
        return replace(listing, models=windows)

    async def _gemini(self, listing: ModelListing, headers: Headers, path: str) -> ModelListing:
        """Ask Gemini's native API, which expects the key in another header. List each model also without `models/`."""
        headers = [
            (b"x-goog-api-key", value.removeprefix(b"Bearer ")) if name == b"authorization" else (name, value)
            for name, value in headers
        ]
        windows = dict(listing.models)
        for entry in _entries(await self._read(path, headers), "models"):
            if (name := _name(entry, "name")) and (window := announced(entry)):
                windows[name] = windows[name.removeprefix("models/")] = window
        return replace(listing, models=windows)

    async def _lm_studio(self, listing: ModelListing, headers: Headers) -> ModelListing:
        windows = dict(listing.models)
        for entry in _entries(await self._read(self._root + "/api/v0/models", headers), "data"):
            loaded, most = _number(entry, ("loaded_context_length",)), _number(entry, ("max_context_length",))
            note = None if loaded else "not loaded; the most it can be loaded with"
            if (name := _name(entry, "id")) and (window := _window(loaded or most, note)):
                windows[name] = window
        return replace(listing, models=windows, changes=True)

    async def _ollama(self, listing: ModelListing, headers: Headers) -> ModelListing:
        running = _entries(await self._read(self._root + "/api/ps", headers), "models")
        contexts = ((_name(entry, "name"), _number(entry, ("context_length",))) for entry in running)
        loaded = {name: Window(context, "provider") for name, context in contexts if name and context}
        seen = {name: window for name, window in self._seen.items() if name in listing.models}
        unseen = [name for name in listing.models if name not in loaded and name not in seen]
        for name in unseen[:MOST_SHOWN]:
            question = msgspec.json.encode({"model": name})
            seen[name] = _ollama_window(object_of(await self._read(self._root + "/api/show", headers, question)))
        was_loaded = "not loaded; as it was when last seen"
        self._seen = seen | {name: replace(window, note=was_loaded) for name, window in loaded.items()}
        return replace(listing, models=dict(listing.models) | seen | loaded, changes=True)

    async def _read(self, target: str, headers: Headers, body: bytes = b"") -> object:
        """Return the decoded answer; None if its status is not 200."""
        status, content = await self._ask(target, headers, body)
        return content if status == 200 else None

    async def _ask(self, target: str, headers: Headers, body: bytes = b"") -> tuple[int, object]:
        status, content = await self._upstream.ask(target.encode(), headers, ASK_SECONDS, body)
        return status, None if holds_more_values(content, MOST_VALUES) else decoded_body(content)


def announced(entry: Entry) -> Window | None:
    """Return the window in an entry of /v1/models, the smallest if it has several."""
    limits = object_of(object_of(entry.get("capabilities")).get("limits"))
    objects = (entry, *(object_of(entry.get(name)) for name in HOLDERS), limits)
    contexts = [number for each in objects if (number := _number(each, CONTEXT_NAMES))]
    if (slot := _number(object_of(entry.get("meta")), ("n_ctx",))) is not None:
        contexts.append(slot)
    most_input = next((number for each in objects if (number := _number(each, INPUT_NAMES))), None)
    most_output = next((number for each in objects if (number := _number(each, OUTPUT_NAMES, least=1))), None)
    if not contexts and most_input and not most_output:
        most_output = _number(entry, ("max_tokens",), least=1)  # Other providers call the window `max_tokens`.
    context = min(contexts, default=most_input)
    if context is None:
        return None
    return Window(
        context,
        "provider",
        max_input=most_input if most_input and most_input < context else None,
        max_output=most_output if most_output and most_output < context else None,
    )


def _ollama_window(shown: Entry) -> Window:
    parameters, info = shown.get("parameters"), object_of(shown.get("model_info"))
    trained = _number(info, [name for name in info if name.endswith(".context_length")])
    given = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    if given and (context := _plausible(given[1])) is not None:
        return Window(max(context, LEAST_CONTEXT), "provider", note="not loaded; as its Modelfile says")
    if shown.get("remote_host") and trained:
        return Window(trained, "provider")
    return Window(min(OLLAMA_DEFAULT, trained or OLLAMA_DEFAULT), "provider", note="not loaded; Ollama's least default")


def _window(context: int | None, note: str | None = None) -> Window | None:
    return None if context is None else Window(context, "provider", note=note)


def _entries(content: object, member: str) -> list[dict[str, Any]]:
    """Return the objects of the list, at most `MOST_ENTRIES`. The provider Together puts no object around its list."""
    listed = content.get(member) if isinstance(content, dict) else content
    return [entry for entry in listed[:MOST_ENTRIES] if isinstance(entry, dict)] if isinstance(listed, list) else []


def _name(entry: Entry, member: str) -> str | None:
    """Return the model's name if it is short and printable: Steno shows it to clients and sends it to the provider."""
    name = entry.get(member)
    return name if isinstance(name, str) and len(name) <= LONGEST_MODEL and name.isprintable() and name else None


def _number(entry: Entry, names: Sequence[str], least: int = LEAST_CONTEXT) -> int | None:
    """Return the first plausible number of at least `least` in these members."""
    numbers = (_plausible(entry.get(name)) for name in names)
    return next((number for number in numbers if number is not None and number >= least), None)


def _plausible(value: object) -> int | None:
    """Return a number of tokens, also from text; None for other values and for more than `MOST_TOKENS`."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None
