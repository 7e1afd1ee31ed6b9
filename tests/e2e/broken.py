"""`steno serve` whose own code fails over a request that says EXPLODE, with all of that request in the error's words.

python -m tests.e2e.broken serve ...
"""

from __future__ import annotations

from typing import Any

from app.commands import cli
from app.proxy import exchange
from app.proxy.intake import Understood, understand
from app.proxy.services import Services
from app.rest import compact
from app.wire.format import WireFormat, WireRequest


async def _exploding(
    services: Services, format_: WireFormat, request: WireRequest, tenant: str, headers: Any, *more: Any
) -> Understood:
    said = request.body.decode()
    if "EXPLODE" not in said:
        return await understand(services, format_, request, tenant, headers, *more)
    try:
        raise KeyError(said)
    except KeyError as error:
        raise ExceptionGroup(said, [ValueError(said), RuntimeError(repr(headers))]) from error


def main() -> None:
    vars(exchange)["understand"] = vars(compact)["understand"] = _exploding
    cli.main()


if __name__ == "__main__":
    main()
