"""Diagnosis: what a provider's answer to the question for its models says about how it is set."""

from __future__ import annotations

from app.errors import LoopDetected, StenoError, UpstreamUnreachable
from app.formats.refusals import says_no_such_path
from app.providers.model_listings import ListingOutcome, ListingRefused, ModelListing
from app.providers.providers import Provider
from app.settings import DEFAULT_UPSTREAM
from app.settings.checks import POINT_AT_PROVIDER, Finding

PROBE_SECONDS = 5.0


async def judge_upstream(provider: Provider, listed: ListingOutcome, key_in: str | None) -> Finding:
    """Any answer shows that the provider is there; only some list its models.

    `key_in` is the variable whose key it was asked with. An API that is not at the base URL is looked for.
    """
    subject, address = f"upstream{suffix(provider)} {provider.settings.base_url}", f"{_section(provider)}.base_url"
    if isinstance(listed, StenoError):
        why = f" ({listed.__cause__})" if listed.__cause__ and str(listed.__cause__) else ""
        what = listed.what if isinstance(listed, UpstreamUnreachable) else listed.message
        remedy = f"Check {address}, and that this machine may connect to it."
        return Finding("problem", subject, f"{what}{why}", remedy)
    if isinstance(listed, ModelListing) and listed.models:
        return Finding("ok", subject, f"reachable, lists {len(listed.models)} models")
    if isinstance(listed, ListingRefused) and listed.status == LoopDetected.status:
        text = f"leads back to a Steno that the request went through already ({listed.status})"
        return Finding("problem", subject, text, POINT_AT_PROVIDER)
    if isinstance(listed, ListingRefused) and listed.wants_key:
        return _judge_key(subject, listed, key_in)
    if isinstance(listed, ListingRefused) and listed.status not in (200, 404, 405):
        return Finding("warning", subject, f"reachable, but answers with status {listed.status}", "Ask the provider.")
    return await _judge_path(provider, listed, subject, address)


async def _judge_path(provider: Provider, listed: ModelListing | ListingRefused, subject: str, address: str) -> Finding:
    """Judge a base URL below which there is no list of models, or an empty one: the path of `address` may be wrong."""
    found = "lists no models"
    if isinstance(listed, ListingRefused):
        found = f"has no list of models at /models ({'no JSON' if listed.status == 200 else listed.status})"
    if (elsewhere := await provider.windows.listings.find_base_url()) is not None:
        return Finding(
            "problem", subject, f"{found}, but there is one at {elsewhere}", f"Set {address} to {elsewhere}."
        )
    if isinstance(listed, ListingRefused) and listed.status == 200:
        remedy = f"Check {address}: it is the API's address, with its path (most end in /v1), not a web site's."
        return Finding("problem", subject, f"reachable, but {found}", remedy)
    if isinstance(listed, ListingRefused) and (paths := await _missing_paths(provider)):
        remedy = f"Check the path of {address}: most end in /v1."
        return Finding("problem", subject, f"reachable, but {found}, and nothing at {' or '.join(paths)}", remedy)
    remedy = f"Check the path of {address} (most end in /v1); some providers have no list of models."
    return Finding("warning", subject, f"reachable, but {found}", remedy)


async def _missing_paths(provider: Provider) -> list[str]:
    """Paths of its formats, below the base URL, if none of them is there; otherwise nothing.

    An empty request is sent to each: it costs nothing, and is refused in another way where there is such a path.
    """
    headers = [(b"content-type", b"application/json")]
    for format_ in provider.formats:
        try:
            answer = await provider.upstream.ask(format_.path, headers, PROBE_SECONDS, b"{}")
        except StenoError:
            return []
        if not says_no_such_path(answer.status, answer.body):
            return []
    return [format_.path.decode().removeprefix("/v1") for format_ in provider.formats]


def suffix(provider: Provider) -> str:
    """Ending of the names of an upstream's findings; empty for the default one."""
    return "" if provider.name == DEFAULT_UPSTREAM else f" {provider.name}"


def _judge_key(subject: str, listed: ListingRefused, key_in: str | None) -> Finding:
    if key_in is None:
        return Finding("ok", subject, f"reachable; without a key it does not list its models ({listed.status})")
    return Finding("warning", subject, f"reachable, but refuses the key in {key_in} ({listed.status})", "Check it.")


def _section(provider: Provider) -> str:
    """Section of the settings."""
    return "upstream" if provider.name == DEFAULT_UPSTREAM else f"upstreams.{provider.name}"
