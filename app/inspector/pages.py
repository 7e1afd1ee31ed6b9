"""Pages: templates, static files, security headers, and filters that format numbers, times and names."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
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
"""Content security policy: pages load only the inspector's own files, and run no inline scripts. Even unescaped text of
a conversation could not run scripts or load anything."""
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # With `no-referrer`, browsers send `null` as the origin of a form.
    "cache-control": "no-store",
}
DASH = "\N{EN DASH}"
_UNITS = ((1_000_000_000, "B"), (1_000_000, "M"), (1_000, "k"))
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"))
DOLLARS = "$"
_DECIMALS = 6


segment = partial(quote, safe="")


def address(path: str, **parameters: object) -> str:
    """Return the path with a query of the parameters that are not empty."""
    said = {name: value for name, value in parameters.items() if value not in (None, "")}
    return f"{path}?{urlencode(said)}" if said else path


def short(number: float | None) -> str:
    """Format a number with about three digits: 1.25M, 31.4k, 812."""
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
    """Format an amount of money, with more decimals for smaller amounts. The function rounds the amount
    before it chooses the decimals, so that floating-point errors do not change the result."""
    if amount is None:
        return DASH
    size = round(abs(amount), _DECIMALS)
    digits = 0 if size >= 1_000 else 2 if size >= 1 or size == 0 else 3 if size >= 0.1 else 4
    return f"{'-' if amount < 0 < size else ''}{currency}{size:,.{digits}f}"


def currency_of(*sums: UsageSum) -> str:
    """Return a dollar sign if all amounts come from list prices or providers' bills. Otherwise return an empty string,
    because the currency of the operator's own prices is unknown."""
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
    """Format a time in UTC, also for the `datetime` attribute of `<time>`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def tenant(tenant: str) -> str:
    """Return a tenant's name for display; only the last four characters if it is a digest."""
    is_digest = len(tenant) == 32 and tenant.isalnum()
    return f"key digest …{tenant[-4:]}" if is_digest else tenant


def coded(text: str) -> Markup:
    """Escape text, and turn backticks into `<code>`."""
    pieces = str(escape(text)).split("`")
    return Markup("".join(f"<code>{each}</code>" if place % 2 else each for place, each in enumerate(pieces)))  # noqa: S704 - escaped


FILES = StaticFiles(directory=HERE / "static")
_TEMPLATES = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_TEMPLATES.filters |= {
    each.__name__: each for each in (short, whole, money, gain, percent, ago, exactly, tenant, coded)
} | {"segment": segment}
_TEMPLATES.globals |= {"version": __version__, "address": address}


def render(template: str, shown: dict[str, Any], status: int = 200) -> Response:
    return HTMLResponse(_TEMPLATES.get_template(template).render(shown), status, HEADERS)
