"""Pages: templates, what all pages share, and the headers that keep them to themselves."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import HTMLResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app import __version__
from app.inspector.formats import FILTERS

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content security policy: nothing but the inspector's own files, and nothing inline, so that text of a conversation
that came through unescaped could neither run nor load."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # Without any referrer a browser calls the origin of a form `null`.
    "cache-control": "no-store",
}
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_A_YEAR = 31_536_000


class Pages:
    def __init__(self) -> None:
        self.files = StaticFiles()
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= FILTERS | {"segment": segment}
        self._environment.globals |= {"static": self.files.address, "version": __version__, "address": address}

    def page(self, template: str, shown: dict[str, Any], status: int = 200) -> Response:
        return HTMLResponse(self._environment.get_template(template).render(shown), status, HEADERS)


class StaticFiles:
    """Static files, read once: they are few and small, and a name that is not among them leads nowhere."""

    def __init__(self) -> None:
        self._files = {path.name: path.read_bytes() for path in sorted((HERE / "static").iterdir())}
        self._tags = {name: blake2b(content, digest_size=8).hexdigest() for name, content in self._files.items()}

    def address(self, name: str) -> str:
        """Address of a file, another one for each content, so that it can be kept for ever."""
        return f"/ui/static/{name}?{self._tags[name]}"

    def answer(self, name: str, known: str | None) -> Response | None:
        """Answer with a file; None where there is no such file. `known`: the tag of what the browser has."""
        if name not in self._files:
            return None
        tag = f'"{self._tags[name]}"'
        headers = {
            "etag": tag,
            "cache-control": f"public, max-age={_A_YEAR}, immutable",
            "x-content-type-options": "nosniff",
        }
        if known == tag:
            return Response(status_code=304, headers=headers)
        return Response(self._files[name], headers=headers, media_type=_TYPES[Path(name).suffix])


def segment(text: str) -> str:
    """Text as one segment of a path, whatever it holds."""
    return quote(text, safe="")


def address(path: str, **parameters: object) -> str:
    """Path with those parameters that say something."""
    said = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(said)}" if said else path
