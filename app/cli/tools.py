"""Arguments and variables that make a command send its requests to Steno: docs/run.md says what was tried of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

OPENAI_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Variables read by OpenAI's own clients, and by older ones and LiteLLM."""
ANTHROPIC_VARIABLES = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")
"""Variables read by Anthropic's own clients and Claude Code, and by LiteLLM."""
KEY_VARIABLES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_OPENCODE = "OPENCODE_CONFIG_CONTENT"

Arguments = list[str]


FIRST_PARTY = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
"""Variable read by Claude Code: behind any other base URL than Anthropic's it believes in a window of 200,000 tokens
and not in the model's own, unless it is told that Anthropic is behind it."""


def variables_for(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command whose requests go to the Steno at `url`: scheme, host and port."""
    made = {
        **environment,
        **dict.fromkeys(OPENAI_VARIABLES, f"{url}/v1"),
        **dict.fromkeys(ANTHROPIC_VARIABLES, url),  # Its clients add /v1/messages.
    }
    if any(name.lower() in _PROXIES for name in environment):
        for name in ("NO_PROXY", "no_proxy"):
            made[name] = ",".join(filter(None, (environment.get(name), "127.0.0.1")))
    return made


def prepared(
    command: Sequence[str], url: str, environment: dict[str, str], *, anthropic: bool = False, mcp: bool = False
) -> Arguments:
    """Return the command as it is started. A known tool that reads no variable gets arguments or other variables.

    `anthropic`: whether Messages go to Anthropic behind Steno. `mcp`: whether the tool is to be given what Steno has at
    `/mcp`, for which it needs a key that other programs know, too.
    """
    name = PurePath(command[0]).name
    if name == "claude" and anthropic:
        environment.setdefault(FIRST_PARTY, "1")
    tool, server = _TOOLS.get(name), _SERVERS.get(name)
    arguments = tool(list(command), f"{url}/v1", environment) if tool else list(command)
    if mcp and server is not None:
        arguments[1:1] = server(f"{url}/mcp", environment)
    return arguments


def _codex(command: Arguments, base_url: str, environment: dict[str, str]) -> Arguments:
    """Configure Codex by arguments: it reads no variable. It gets a provider of its own: OpenAI's at another address
    it asks by WebSocket first, which Steno refuses. Without a key in the environment it sends the one of its login."""
    key = 'env_key="OPENAI_API_KEY"' if environment.get("OPENAI_API_KEY") else "requires_openai_auth=true"
    provider = f'{{name="Steno", base_url="{base_url}", wire_api="responses", {key}}}'
    return [command[0], "-c", 'model_provider="steno"', "-c", f"model_providers.steno={provider}", *command[1:]]


def _opencode(command: Arguments, base_url: str, environment: dict[str, str]) -> Arguments:
    """Configure opencode, which takes base URLs from its configuration alone: this variable is the last word of it."""
    try:
        given = msgspec.json.decode(environment.get(_OPENCODE, "{}"), type=dict[str, Any])
    except msgspec.DecodeError:
        given = {}
    at_steno = {name: {"options": {"baseURL": base_url}} for name in ("openai", "anthropic")}
    environment[_OPENCODE] = msgspec.json.encode(_laid_over(given, {"provider": at_steno})).decode()
    return command


def _laid_over(given: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for name, value in ours.items():
        there = merged.get(name)
        merged[name] = _laid_over(there, value) if isinstance(there, dict) and isinstance(value, dict) else value
    return merged


def _server_of_codex(url: str, environment: Mapping[str, str]) -> Arguments:
    if not environment.get("OPENAI_API_KEY"):
        return []
    return ["-c", f'mcp_servers.steno={{url="{url}", bearer_token_env_var="OPENAI_API_KEY"}}']


def _server_of_claude(url: str, environment: Mapping[str, str]) -> Arguments:
    """One argument: of several it would take the user's own for further files. It puts the keys in itself, so that no
    list of processes shows them."""
    sent = {"ANTHROPIC_API_KEY": ("x-api-key", ""), "ANTHROPIC_AUTH_TOKEN": ("authorization", "Bearer ")}
    headers = {name: f"{before}${{{key}}}" for key, (name, before) in sent.items() if environment.get(key)}
    if not headers:
        return []
    servers = {"mcpServers": {"steno": {"type": "http", "url": url, "headers": headers}}}
    return [f"--mcp-config={msgspec.json.encode(servers).decode()}"]


_SERVERS: Mapping[str, Callable[[str, Mapping[str, str]], Arguments]] = {
    "codex": _server_of_codex,
    "claude": _server_of_claude,
}
"""Arguments with which a tool finds a server of MCP."""
_TOOLS: Mapping[str, Callable[[Arguments, str, dict[str, str]], Arguments]] = {"codex": _codex, "opencode": _opencode}
