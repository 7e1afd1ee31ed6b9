"""The banner: what somebody who starts Steno in a terminal wants to know first, with addresses to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app import __version__
from app.settings import Settings
from app.wire.paths import FORMAT_NAMES

_NAMES = {"chat_completions": "Chat Completions", "responses": "Responses", "messages": "Messages"}
_VARIABLES = {"chat_completions": "OPENAI_BASE_URL", "responses": "OPENAI_BASE_URL", "messages": "ANTHROPIC_BASE_URL"}
"""Variables that the providers' own SDKs read."""
WIDTH = 18


def banner(
    settings: Settings,
    url: str,
    database: str,
    server: str,
    missing_tables: Sequence[str] = (),
    inspector: str | None = None,
) -> str:
    """`url` is scheme, host and port; `server` says what Steno runs on; `inspector` is the link that signs in there.

    That link is a secret: the banner is for somebody at a terminal, not for a file.
    """
    rows = [
        *_addresses(url),
        *([("Inspector", inspector)] if inspector else []),
        ("Metrics", f"{url}/metrics"),
        ("", ""),
        *_upstreams(settings),
        ("Database", database),
        ("Tokenizer", _tokenizer(missing_tables)),
        ("Server", server),
    ]
    lines = (f"  {name:<{WIDTH}}{value}".rstrip() for name, value in rows)
    return "\n".join(("", f"Steno {__version__}", "", *lines, "", "Stop it with Ctrl-C.", "", ""))


def _addresses(url: str) -> Iterator[tuple[str, str]]:
    """The base URL of each format: the SDKs of Messages add `/v1` themselves."""
    for name in FORMAT_NAMES:
        base = url if name == "messages" else f"{url}/v1"
        yield _NAMES[name], f"{_VARIABLES[name]}={base}"


def _upstreams(settings: Settings) -> Iterator[tuple[str, str]]:
    for number, (name, upstream) in enumerate(settings.all_upstreams.items()):
        spoken = ", ".join(_NAMES[each] for each in FORMAT_NAMES if each in upstream.speaks)
        yield "" if number else "Upstreams", f"{name}: {upstream.base_url} ({spoken})"


def _tokenizer(missing: Sequence[str]) -> str:
    return f"no table for {', '.join(missing)}: tokens are estimated by bytes" if missing else "tiktoken's tables"
