"""Relay that one writes in an afternoon, of FastAPI and httpx; changes nothing. Run by uvicorn, with UPSTREAM."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

URL = f"{os.environ['UPSTREAM']}/v1/chat/completions"
POOL = httpx.Limits(max_connections=None, max_keepalive_connections=1000, keepalive_expiry=60)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with httpx.AsyncClient(timeout=600, trust_env=False, limits=POOL) as client:
        app.state.client = client
        yield


app = FastAPI(lifespan=_lifespan)


@app.post("/v1/chat/completions")
async def relay(request: Request) -> Response:
    body = await request.body()
    headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
    upstream: httpx.AsyncClient = request.app.state.client
    if json.loads(body).get("stream") is not True:
        answer = await upstream.post(URL, content=body, headers=headers)
        return Response(answer.content, answer.status_code, media_type=answer.headers.get("content-type"))
    answer = await upstream.send(upstream.build_request("POST", URL, content=body, headers=headers), stream=True)
    return StreamingResponse(_pieces(answer), answer.status_code, media_type=answer.headers.get("content-type"))


async def _pieces(answer: Any) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
