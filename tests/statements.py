"""What a PostgreSQL was asked to do, by its own log, in which a driver hides nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import asyncpg

WRITING = ("INSERT", "UPDATE", "DELETE")
_LOGGED = re.compile(r"\[(\d+)\] LOG:  (?:statement|execute [^:]*): (.*(?:\n\t.*)*)")
"""With the default prefix, which names the process."""
_CHANGED = re.compile(r"^(?:WITH.*\n\t\()?(INSERT|UPDATE|DELETE) (?:INTO |FROM )?(\w+)")
"""The first table that is changed, by a part of the statement too."""
_READ = re.compile(r"FROM (\w+)")


@dataclass(slots=True)
class Statements:
    """Those of one database. A statement that is executed with many rows in a row counts once: a driver sends them
    together."""

    url: str
    _seen: int = 0
    """Bytes of the log that were looked at."""
    _open: set[str] = field(default_factory=set)
    """Processes of the server in a transaction that was begun."""

    async def begin(self) -> None:
        """For connections that are made from now on."""
        name = (await self._asked("SELECT current_database()"))[0][0]
        await self._asked(f"ALTER DATABASE \"{name}\" SET log_statement = 'all'")
        self._seen = (await self._asked("SELECT size FROM pg_stat_file('log')"))[0][0]

    async def since(self) -> tuple[Mapping[str, int], int]:
        """Since the last time: how often each was executed, named by its verb and its table, and how many transactions
        it took."""
        log = (await self._asked("SELECT pg_read_binary_file('log', $1, 500 << 20)", self._seen))[0][0]
        self._seen += len(log)
        counted: Counter[str] = Counter()
        latest: dict[str, str] = {}
        transactions = 0
        for process, statement in _LOGGED.findall(log.decode(errors="replace")):
            if "pg_read_binary_file" in statement:  # Its own.
                continue
            if latest.get(process) == statement and process in self._open:
                continue
            latest[process], name = statement, _name(statement)
            counted[name] += 1
            if process not in self._open:
                transactions += 1
            if name == "BEGIN":
                self._open.add(process)
            elif name in ("COMMIT", "ROLLBACK"):
                self._open.discard(process)
        return counted, transactions

    async def _asked(self, query: str, *values: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url, timeout=10, command_timeout=30)
        try:
            return list(await connection.fetch(query, *values))
        finally:
            await connection.close()


def _name(statement: str) -> str:
    if statement.startswith("SELECT set_config"):
        return "SELECT set_config"
    if changed := _CHANGED.search(statement):
        return f"{changed[1]} {changed[2]}"
    read = _READ.search(statement)
    verb = statement.split(maxsplit=1)[0].rstrip(";")
    return f"{verb} {read[1]}" if read else verb
