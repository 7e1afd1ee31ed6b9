"""A long conversation with tools and reasoning over Responses: python responses.py URL CLIENT.

Ends with an error where the client has one. What the provider saw of it is for the caller to judge.
"""

# ruff: noqa: PLC0415 - each client is loaded where it is the one

from __future__ import annotations

import asyncio
import sys
from itertools import cycle, islice
from typing import Any

MODEL, INSTRUCTIONS = "gpt-5-think", "You are the shop's clerk."
TURNS = 24
_FILLER = ["the", "clerk", "wrote", "down", "what", "was", "agreed", "about", "the", "parcel", "of", "the", "day"]


def words(number: int) -> str:
    return " ".join(islice(cycle(_FILLER), number))


def question(turn: int) -> str:
    return f"{turn}. {words(800)} Find it?"


def langchain(url: str, *, stream: bool) -> None:
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool  # type: ignore[untyped-decorator]
    def look_up(order: str = "") -> str:  # noqa: ARG001 - the model's
        """Finds an order."""
        return words(100)

    model = ChatOpenAI(
        model=MODEL,
        base_url=f"{url}/v1",
        api_key="sk-langchain",
        max_retries=0,
        use_responses_api=True,
        store=False,
        include=["reasoning.encrypted_content"],
        include_response_headers=True,
    ).bind_tools([look_up])
    history: list[Any] = [SystemMessage(INSTRUCTIONS)]
    told: set[str] = set()
    for turn in range(TURNS):
        history.append(HumanMessage(question(turn)))
        while True:
            answer = _joined(model.stream(history)) if stream else model.invoke(history)
            told.add(answer.response_metadata["headers"]["x-context-status"])
            history.append(answer)
            if not answer.tool_calls:
                break
            history += [look_up.invoke(call) for call in answer.tool_calls]
    assert "summarized" in told


def _joined(chunks: Any) -> Any:
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


async def pydantic_ai(url: str, *, stream: bool) -> None:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-pydantic-ai", max_retries=0)
    model = OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, instructions=INSTRUCTIONS)

    @agent.tool_plain  # type: ignore[untyped-decorator]
    def look_up(order: str = "") -> str:  # noqa: ARG001 - the model's
        """Finds an order."""
        return words(100)

    history: list[Any] = []
    for turn in range(TURNS):
        if stream:
            async with agent.run_stream(question(turn), message_history=history) as run:
                assert [text async for text in run.stream_text()]
                history = run.all_messages()
        else:
            history = (await agent.run(question(turn), message_history=history)).all_messages()


def main(url: str, client: str) -> None:
    stream = client.endswith(" stream")
    if client.startswith("langchain"):
        langchain(url, stream=stream)
    else:
        asyncio.run(pydantic_ai(url, stream=stream))


if __name__ == "__main__":
    main(*sys.argv[1:])
