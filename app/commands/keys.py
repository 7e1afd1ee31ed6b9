"""Keys that Steno gives out, for `steno keys`: in the file or the database that `clients.keys` names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import time

from msgspec.structs import replace

from app.commands.audit import user
from app.commands.conversations import opened
from app.commands.terminal import say_row
from app.proxy.keyring import LOOK_SECONDS, alone_with, new_key, read_file, write_file
from app.settings import Settings
from app.store.audit import record_act
from app.store.client_keys import ClientKey, KeyLimits, add_client_key, read_client_keys, revoke_client_keys

SECONDS_UNTIL_REFUSED = round(2 * LOOK_SECONDS)


class NoSuchKey(Exception):
    """No key that holds has this id or owner, or there is no place for keys."""


async def add(settings: Settings, owner: str, limits: KeyLimits, seconds: float | None) -> tuple[str, ClientKey]:
    """Make a key and keep it. Returns the key, which is shown once."""
    path, (shown, key) = _place(settings), new_key(owner, limits, seconds)
    if path is not None:
        with alone_with(path):
            write_file(path, [*read_file(path), key])
        return shown, key
    async with opened(settings) as store:
        await store.change_at_once(record_act, user(), "add_key", subject=key.id)
        await store.change_at_once(add_client_key, key)
    return shown, key


async def keys_of(settings: Settings) -> Sequence[ClientKey]:
    if (path := _place(settings)) is not None:
        return read_file(path)
    async with opened(settings) as store:
        return await store.at_once(read_client_keys)


async def revoke(settings: Settings, named: str) -> list[str]:
    """End the key with this id, or all of an owner. Returns their ids. Raises `NoSuchKey`."""
    if (path := _place(settings)) is not None:
        with alone_with(path):
            keys = read_file(path)
            ids = _revoked(keys, named)
            write_file(path, ended(keys, ids))
        return ids
    ids = _revoked(await keys_of(settings), named)
    async with opened(settings) as store:
        for id_ in ids:
            await store.change_at_once(record_act, user(), "revoke_key", subject=id_)
        await store.change_at_once(revoke_client_keys, ids)
    return ids


def _revoked(keys: Sequence[ClientKey], named: str) -> list[str]:
    """Ids of the keys to end. Raises `NoSuchKey`."""
    now = time()
    if ids := [key.id for key in keys if named in (key.id, key.owner) and key.holds_at(now)]:
        return ids
    raise NoSuchKey(f"No key that holds has the id or the owner {named!r}.")


def show(keys: Sequence[ClientKey]) -> None:
    """Print a row for each key."""
    for key in keys:
        limits = {name: value for name in KeyLimits.__struct_fields__ if (value := getattr(key.limits, name))}
        shown = " ".join(f"{name}={','.join(v) if isinstance(v, tuple) else v}" for name, v in limits.items())
        say_row((key.id, key.owner, _state(key), shown))


def ended(keys: Sequence[ClientKey], ids: Sequence[str]) -> list[ClientKey]:
    """Keys of which some are revoked now."""
    return [replace(key, revoked_at=time()) if key.id in ids else key for key in keys]


def _state(key: ClientKey) -> str:
    if key.revoked_at is not None:
        return f"revoked {_day(key.revoked_at)}"
    return "holds" if key.expires_at is None else f"until {_day(key.expires_at)}"


def _day(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):  # Beyond the calendar.
        return f"{seconds:g} seconds after 1970"


def _place(settings: Settings) -> Path | None:
    """File that the keys are kept in; None for the database. Raises `NoSuchKey`."""
    if settings.clients.keys is None:
        raise NoSuchKey('clients.keys is not set: name a file, or say "database".')
    return settings.clients.keys_file
