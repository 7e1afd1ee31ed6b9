"""`steno plan`: shows what Steno would do to a request. The only calls to providers are for their lists of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import httpx2
import msgspec
import typer
from pydantic import SecretStr

from app.cli.command import (
    AsJson,
    Config,
    Upstream,
    Window,
    at_window,
    commands,
    fail,
    failing_on,
    print_json,
    settings_of,
)
from app.cli.models import SOURCES
from app.http.loopback import serve
from app.main import create_app
from app.settings import ClientSettings, ConfigurationError, Settings

ANSWER_SECONDS = 120.0
PARTS = {
    "instructions": "instructions and tools",
    "summarized": "summarised",
    "carried": "kept beside a summary",
    "masked": "tool results, masked",
    "shortened": "shortened",
    "verbatim": "verbatim",
    "recalled": "quoted again",
    "exact_values": "exact values",
    "state": "state of the work",
    "client_instructions": "the client's instructions, said again",
}
STATUSES = {
    "full": "Steno would forward it as it is.",
    "summarized": "Steno would replace older turns with summaries.",
    "trimmed": "Steno would shorten or leave out parts of it.",
}

cli = commands()


@cli.command()
def plan(
    file: Annotated[typer.FileBinaryRead, typer.Argument(help="A request body as JSON; - reads standard input.")],
    written: Annotated[
        str | None, typer.Option("--as", help="Its format: chat_completions, messages, responses.")
    ] = None,
    window: Window = None,
    upstream: Upstream = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Say what Steno would do to a request. No provider gets it, and no stored summary is used."""
    settings = settings_of(config, upstream={"base_url": upstream})
    try:
        request = msgspec.json.decode(file.read(), type=dict[str, Any])
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        fail(f"The request must be a JSON object: {error}.")
    request["format"] = written or request.get("format") or ("responses" if "input" in request else "chat_completions")
    with failing_on(ConfigurationError), asking(at_window(settings, window) if window else settings) as client:
        answer = client.post("/context/plan", json=request)
    planned = answer.json()
    if answer.status_code != 200:
        fail(planned["error"]["message"])
    if as_json:
        print_json(planned)
    else:
        for line in in_words(planned, request.get("model")):
            typer.echo(line)


@contextmanager
def asking(settings: Settings) -> Iterator[httpx2.Client]:
    """Start a Steno in this process, with its database in memory, and yield a client of it.

    Raises `ConfigurationError` if the settings are not valid.
    """
    in_memory = settings.storage.model_copy(update={"url": SecretStr("memory")})
    here = settings.server.model_copy(update={"host": "127.0.0.1"})
    alone = settings.model_copy(update={"storage": in_memory, "server": here, "clients": ClientSettings()})
    with (
        serve(create_app(alone, reports=False)) as server,
        httpx2.Client(base_url=server.url, timeout=ANSWER_SECONDS, trust_env=False) as client,
    ):
        yield client


def in_words(planned: Mapping[str, Any], model: str | None) -> Iterator[str]:
    context, budget = planned["context"], planned["budget"]
    tokens = context["tokens"]
    over = "over" if tokens["estimated"] > budget["trigger"] else "within"
    yield STATUSES[planned["context_status"]]
    yield ""
    yield f"  request    {tokens['estimated']:>9,} tokens, {over} the trigger of {budget['trigger']:,}"
    yield f"  forwarded  {tokens['forwarded']:>9,} tokens, {tokens['saved']:,} saved"
    yield f"  window     {budget['window']:>9,} tokens for {model} (from: {SOURCES[budget['window_source']]})"
    yield f"  limit      {budget['limit']:>9,} tokens for the prompt; a compaction aims at {budget['target']:,}"
    if made := planned["summaries_to_make"]:
        messages = f"{planned['messages_to_summarize']} messages"
        yield f"  summaries  {made:>9,} to be made of {messages}, counted here at their largest"
    if context["actions"]:
        yield f"  actions    {', '.join(context['actions'])}"
    if context["reason"]:
        yield f"  reason     {context['reason']}"
    yield ""
    yield "  The payload in order:"
    for part in planned["parts"]:
        yield f"  {part['tokens']:>9,}  {PARTS.get(part['kind'], part['kind'])}{_range(part)}"


def _range(part: Mapping[str, Any]) -> str:
    """Return the range of messages in words. Messages are numbered from 1, as in summaries."""
    first, last = part.get("first_index"), part.get("last_index")
    if first is None or last is None:
        return ""
    return f", message {first + 1}" if first == last else f", messages {first + 1} to {last + 1}"
