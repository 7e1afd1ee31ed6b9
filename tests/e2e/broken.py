"""`steno serve` that waits for a request's bytes for RECEIVE_SECONDS, and whose own code fails over a request that says
EXPLODE, with all of that request in the error's words.

python -m tests.e2e.broken serve ...
"""

from __future__ import annotations

import os
from typing import Any

from app.api import compactions
from app.cli import main as cli
from app.compaction.request import ChatRequest
from app.formats.requests import WireRequest
from app.proxy import request as proxy_request
from app.proxy.caller import Caller
from app.proxy.exchange import Services
from app.proxy.request import parse_request
from app.settings import LimitSettings


async def _exploding(
    services: Services, request: WireRequest, caller: Caller, request_id: str, **options: Any
) -> ChatRequest:
    said = request.body.decode()
    if "EXPLODE" not in said:
        return await parse_request(services, request, caller, request_id, **options)
    try:
        raise KeyError(said)
    except KeyError as error:
        raise ExceptionGroup(said, [ValueError(said), RuntimeError(repr(caller.headers))]) from error


def main() -> None:
    vars(proxy_request)["parse_request"] = vars(compactions)["parse_request"] = _exploding
    LimitSettings.receive_seconds = float(os.environ.get("RECEIVE_SECONDS", "1.5"))
    cli.main()


if __name__ == "__main__":
    main()
