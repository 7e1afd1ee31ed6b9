"""A request as a curl command: for a shell, with the key from its environment."""

from __future__ import annotations

import re
from shlex import quote

from app.formats.format import WireFormat
from app.http.own_headers import CONVERSATION_ID
from app.proxy.conversation_ids import encoded_name

_BODY_ENDS = "STENO_BODY"
_LIKE_THE_END = re.compile(f"{_BODY_ENDS}_*")
_KEYS = {"messages": (b"x-api-key", b"", "ANTHROPIC_API_KEY")}
"""Header, prefix and variable of the key, by format, where its clients have their own way."""
_USUAL_KEY = (b"authorization", b"Bearer ", "OPENAI_API_KEY")


def key_header(spoken: WireFormat) -> tuple[bytes, bytes]:
    """Header in which a format's clients send their key, and what stands before the key there."""
    name, before, _ = _KEYS.get(spoken.name, _USUAL_KEY)
    return name, before


def curl_of(base_url: str, spoken: WireFormat, conversation_id: str, body: bytes) -> str:
    """Curl command of a request to `base_url`: Steno's scheme, host and port. The body goes in by a here-document: it
    may be longer than an argument may, and nothing in it means anything to the shell."""
    name, before, variable = _KEYS.get(spoken.name, _USUAL_KEY)
    named = CONVERSATION_ID + b": " + encoded_name(conversation_id)
    headers = [
        "content-type: application/json",
        *(f"{header.decode()}: {value.decode()}" for header, value in spoken.summaries.headers),
        named.decode("latin-1"),
    ]
    text = body.decode("utf-8", "replace")
    # One pass, whatever the text holds: it is the client's, and may be a million underscores.
    end = max(_LIKE_THE_END.findall(text), key=len, default="")
    end = f"{end}_" if end else _BODY_ENDS
    lines = [
        f"curl -sS {quote(base_url + spoken.path.decode())}",
        f'  -H "{name.decode()}: {before.decode()}${variable}"',
        *(f"  -H {quote(header)}" for header in headers),
        f"  --data-binary @- <<'{end}'",
    ]
    return " \\\n".join(lines) + f"\n{text}\n{end}\n"
