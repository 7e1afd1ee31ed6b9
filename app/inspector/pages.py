"""Pages: templates, what all pages share, and the headers that keep them to themselves."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
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
FOR_EVER = "public, max-age=31536000, immutable"


class Pages:
    def __init__(self) -> None:
        self.files = Files()
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


class Files(StaticFiles):
    def __init__(self) -> None:
        super().__init__(directory=HERE / "static")
        self._tags = {
            path.name: blake2b(path.read_bytes(), digest_size=8).hexdigest() for path in HERE.glob("static/*")
        }

    def address(self, name: str) -> str:
        """Another one for each content, so that it can be kept for ever."""
        return f"/ui/static/{name}?{self._tags[name]}"

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        answer = super().file_response(*arguments, **options)
        answer.headers.update({"cache-control": FOR_EVER, "x-content-type-options": "nosniff"})
        return answer


def segment(text: str) -> str:
    return quote(text, safe="")


def address(path: str, **parameters: object) -> str:
    """Path with those parameters that say something."""
    said = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(said)}" if said else path
