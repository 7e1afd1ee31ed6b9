"""Pages: templates, the headers that keep them to themselves, and how they write numbers, times and names."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from app import __version__
from app.store import UsageSum

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
DASH = "\N{EN DASH}"
_UNITS = ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k"))
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))
DOLLARS = "$"
_DECIMALS = 6


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
        self._environment.filters |= FILTERS
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


def short(number: float | None) -> str:
    """Number with about three digits: 1.25M, 31.4k, 812."""
    if number is None:
        return DASH
    size = abs(number)
    for unit, letter in _UNITS:
        if size >= unit * 0.9995:
            shown = f"{number / unit:.{2 if size < 10 * unit else 1 if size < 100 * unit else 0}f}"
            return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown}{letter}"
    return f"{number:.0f}"


def whole(number: float | None) -> str:
    return DASH if number is None else f"{number:,.0f}"


def money(amount: float | None, currency: str = "") -> str:
    """Amount in the prices' currency unit, with at least two digits that say something. Amounts that differ by their
    rounding alone are the same."""
    if amount is None:
        return DASH
    size = round(abs(amount), _DECIMALS)
    digits = 0 if size >= 1_000 else 2 if size >= 1 or size == 0 else 3 if size >= 0.1 else 4
    return f"{'-' if amount < 0 < size else ''}{currency}{size:,.{digits}f}"


def currency_of(*sums: UsageSum) -> str:
    """Sign of the currency: list prices and providers' bills are in US dollars, the operator's own prices in a unit
    that nobody names."""
    in_dollars = sum(each.list_priced + each.billed for each in sums)
    return DOLLARS if in_dollars == sum(each.priced for each in sums) else ""


def gain(saved: float, currency: str = "") -> str:
    if round(saved, _DECIMALS) < 0:
        return f"Cost {money(-saved, currency)} more than without Steno"
    return f"Saved {money(saved, currency)}"


def percent(share: float | None) -> str:
    if share is None:
        return DASH
    return f"{100 * share:.{0 if share >= 0.0995 or share == 0 else 1}f} %"


def ago(moment: datetime, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    for size, unit in _STEPS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return "just now"


def counted(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def exactly(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def machine(moment: datetime) -> str:
    """Moment for the `datetime` of a `<time>`."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")


def tenant(tenant: str) -> str:
    """A name as it is; of the digest of a key the last four characters."""
    is_digest = len(tenant) == 32 and tenant.isalnum()
    return f"key digest …{tenant[-4:]}" if is_digest else tenant


def words(code: str) -> str:
    return code.replace("_", " ")


def coded(text: str) -> Markup:
    """Text with backticks turned into code, and everything escaped."""
    pieces = str(escape(text)).split("`")
    return Markup("".join(f"<code>{each}</code>" if place % 2 else each for place, each in enumerate(pieces)))  # noqa: S704 - escaped


def number(index: int) -> int:
    """Number of a message after the instructions, from 1, as Steno's notes count them; REST counts indexes from 0."""
    return index + 1


FILTERS = {
    each.__name__: each
    for each in (short, whole, money, gain, percent, ago, exactly, machine, tenant, words, coded, number, segment)
}
