"""Merging of tenants, for `steno tenants`: what is stored of a key goes on under another one."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable

from app.commands.audit import user
from app.core.history.identity import Identity
from app.settings import ClientSettings, Settings
from app.settings.secret import server_secret
from app.store import Store
from app.store.audit import record_act
from app.store.link_calls import LOOK_SECONDS

KEY = "key"
"""Word that stands for a key, which no command line should hold."""
_TENANT = re.compile(r"[0-9a-f]{32}")


class NoTenant(Exception):
    """A tenant that was named is none."""


def named(settings: Settings, store: Store, given: str, ask: Callable[[], str]) -> str:
    """Tenant that an argument names. `ask` gives the key that it stands for. Raises `NoTenant`."""
    if _TENANT.fullmatch(given):
        return store.links.resolved(given, persons=False)
    if given != KEY:
        raise NoTenant(f"A tenant is an id of 32 characters, as GET /context/tenant says it, or the word {KEY!r}.")
    own = Identity(server_secret(settings)).tenant(ask().strip().encode("utf-8", "surrogateescape"))
    return store.links.resolved(own, persons=settings.clients != ClientSettings())


def key_from(variable: str, prompt: Callable[[str], str]) -> str:
    """Key in an environment variable, else asked for."""
    return os.environ.get(variable) or prompt(f"Key of {variable.removesuffix('_KEY').lower()}")


async def merge(store: Store, old: str, new: str) -> int:
    """Let whoever is served as `new` be served as `old`, and move what is stored; how many rows. Raises `NoTenant`."""
    if old == new:
        raise NoTenant("Both are one tenant already.")
    await store.change_at_once(record_act, user(), "merge_tenants", old, new)
    await store.links.merge(old, new)
    moved = await store.links.move(old)
    # Meanwhile a Steno that runs may not have known, and have stored something.
    await asyncio.sleep(2 * LOOK_SECONDS)
    return moved + await store.links.move(old)
