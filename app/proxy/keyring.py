"""The keyring: the keys that Steno gave out, as the file or the database has them, a few seconds old at most."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from math import inf
from pathlib import Path
from time import monotonic, time

import msgspec
import structlog

from app.edge.credentials import OWN_KEY
from app.errors import IdentityUnavailable
from app.runtime.repeats import Repeats
from app.store import Store, StoreUnavailable
from app.store.client_keys import ClientKey, KeyLimits, read_client_keys

LOOK_SECONDS = 5.0
"""Time between two looks, and for which a caller is taken for who he was: a revoked key is refused after twice that."""
AGAIN_SECONDS = 1.0
"""Time after a look before which an unknown key causes no other: it may have been given out since."""

log = structlog.get_logger("steno.clients")


class KeysUnusable(Exception):
    """A file of keys that cannot be read or written: which, why, and what to do."""


def new_key(owner: str, limits: KeyLimits, seconds: float | None) -> tuple[str, ClientKey]:
    """Make a key for so many seconds, or for ever: as it is shown, once, and as it is kept."""
    shown, now = OWN_KEY.decode() + secrets.token_urlsafe(32), time()
    expires_at = None if seconds is None else now + seconds
    kept = ClientKey(f"key_{secrets.token_hex(6)}", _digest_of(shown.encode()), owner, now, expires_at, limits=limits)
    return shown, kept


def _digest_of(key: bytes) -> str:
    """All that is kept of a key. No secret goes into it: a key has 256 random bits."""
    return sha256(key).hexdigest()


class Keyring:
    def __init__(self, store: Store, path: Path | None) -> None:
        """Hold the keys of this file; of the database if there is none."""
        self._store = store
        self._path = path
        self._keys: Mapping[str, ClientKey] | None = None
        """Keys by their digests; None before they were read."""
        self._looked = -inf
        """Time of the last look, by the monotonic clock."""
        self._repeats = Repeats()
        self.limits_conversations = False
        """True if a key limits what a conversation may cost."""

    async def find(self, key: bytes) -> ClientKey | None:
        """Return the key that this is; None if it is not known, revoked or expired. Raises `IdentityUnavailable`."""
        digest = _digest_of(key)
        if (self._keys is None or digest not in self._keys) and monotonic() - self._looked > AGAIN_SECONDS:
            await self.load()
        if self._keys is None:
            raise IdentityUnavailable("The keys of this Steno cannot be read now.")
        found = self._keys.get(digest)
        return found if found is not None and found.holds_at(time()) else None

    async def has(self, id_: str) -> bool:
        """False once the key with this id is revoked or expired, and while no keys could be read."""
        if self._keys is None:
            await self.load()
        keys, now = self._keys or {}, time()
        return any(key.id == id_ and key.holds_at(now) for key in keys.values())

    async def load(self) -> None:
        """Read the keys, if that can be done. Those that are known stay otherwise."""
        self._looked = monotonic()
        try:
            if self._path is None:
                keys: Sequence[ClientKey] = await self._store.task(read_client_keys)
            else:
                keys = await asyncio.to_thread(read_file, self._path)
        except (StoreUnavailable, KeysUnusable) as error:
            if (times := self._repeats.again("load")) is not None:
                log.warning("keys not read", reason=str(error), times=times)
            return
        self._repeats.over("load")
        self._keys = {key.digest: key for key in keys}
        self.limits_conversations = any(key.limits.money_per_conversation is not None for key in keys)

    async def run(self) -> None:
        """Read the keys again and again."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.load()


@contextmanager
def _using(path: Path) -> Iterator[None]:
    """Raise `KeysUnusable` for what fails with a file of keys."""
    try:
        yield
    except FileNotFoundError as error:
        raise KeysUnusable(
            f"There is no folder {path.parent} for the keys in {path}: make it, or correct clients.keys."
        ) from error
    except OSError as error:
        raise KeysUnusable(
            f"The keys in {path} cannot be used ({error.strerror}): see to the file and its folder, or correct"
            " clients.keys."
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise KeysUnusable(
            f"{path} is no file of keys ({error}): restore it, or move it away and give out new keys."
        ) from error


def read_file(path: Path) -> list[ClientKey]:
    """Read a file of keys, the oldest first; none if its folder has no such file. Raises `KeysUnusable`."""
    with _using(path):
        if not path.exists() and path.parent.is_dir():
            return []
        return msgspec.json.decode(path.read_bytes(), type=list[ClientKey])


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Hold a file of keys against others who change it. Raises `KeysUnusable`."""
    with _using(path):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def write_file(path: Path, keys: Sequence[ClientKey]) -> None:
    """Put a file of keys in the place of the one there. Raises `OSError`."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(keys), indent=1) + b"\n")
    beside.replace(path)
