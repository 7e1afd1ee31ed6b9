"""A request as a curl command: for a shell, with the key from its environment."""

from __future__ import annotations

from shlex import quote

from app.proxy.naming import OWN_HEADERS, encoded_name
from app.wire.format import WireFormat

_BODY_ENDS = "STENO_BODY"
_KEYS = {"messages": ("x-api-key: ", "ANTHROPIC_API_KEY")}
"""How a format's clients send their key, where they do it in their own way, and the variable they keep it in."""
_USUAL_KEY = ("authorization: Bearer ", "OPENAI_API_KEY")


def curl_of(base_url: str, spoken: WireFormat, conversation_id: str, body: bytes) -> str:
    """`base_url`: Steno's scheme, host and port. The body goes in by a here-document: it may be longer than an argument
    may, and nothing in it means anything to the shell."""
    before, variable = _KEYS.get(spoken.name, _USUAL_KEY)
    named = OWN_HEADERS[0] + b": " + encoded_name(conversation_id)
    headers = [
        "content-type: application/json",
        *(f"{name.decode()}: {told.decode()}" for name, told in spoken.summaries.headers),
        named.decode("latin-1"),
    ]
    text = body.decode("utf-8", "replace")
    end = _BODY_ENDS
    while end in text:
        end += "_"
    lines = [
        f"curl -sS {quote(base_url + spoken.path.decode())}",
        f'  -H "{before}${variable}"',
        *(f"  -H {quote(header)}" for header in headers),
        f"  --data-binary @- <<'{end}'",
    ]
    return " \\\n".join(lines) + f"\n{text}\n{end}\n"
