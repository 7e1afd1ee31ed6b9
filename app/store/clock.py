"""The database's clock: the only one that all replicas share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

DAY_MS = 86_400_000


class now_ms(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """Milliseconds since 1970, read when the statement runs, not when its transaction began."""

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _on_postgresql(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "sqlite")
def _on_sqlite(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    # unixepoch('subsec') would read better, but needs SQLite 3.42; 2440587.5 is the Julian day of 1970.
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


def moment(milliseconds: int) -> datetime:
    """Time of these milliseconds since 1970, as `now_ms` gives them."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
