"""A long conversation with tools and thinking over Messages: python messages.py URL CLIENT.

Ends with an error where the client has one. What the provider saw of it is for the caller to judge.
"""

# ruff: noqa: PLC0415 - each client is loaded where it is the one
from __future__ import annotations

import asyncio
import sys
from itertools import cycle, islice
from typing import Any

MODEL, SYSTEM = "claude-bind", "You are the shop's clerk."
THINKING = {"type": "enabled", "budget_tokens": 1_024}
TURNS = 40
_FILLER = "the clerk wrote down what was agreed about the parcel so that nobody has to ask the customer again"


def words(number: int) -> str:
    return " ".join(islice(cycle(_FILLER.split()), number))


def question(turn: int) -> str:
    return f"{turn}. {words(400)} {'Find it?' if turn % 3 == 1 else 'Thank you.'}"


def look_up(order: str) -> str:  # noqa: ARG001 - the model's
    """Finds an order."""
    return words(150)


def langchain(url: str, *, stream: bool) -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, SystemMessage
    from langchain_core.tools import tool

    found = tool(look_up)

    model = ChatAnthropic(
        model=MODEL, base_url=url, api_key="sk-langchain", max_tokens=1_200, max_retries=0, thinking=THINKING
    ).bind_tools([found])
    history: list[Any] = [SystemMessage(SYSTEM)]
    for turn in range(TURNS):
        history.append(HumanMessage(question(turn)))
        while True:
            answer = _joined(model.stream(history)) if stream else model.invoke(history)
            history.append(answer)
            if not answer.tool_calls:
                break
            history += [found.invoke(call) for call in answer.tool_calls]


def _joined(chunks: Any) -> Any:
    first, *rest = chunks
    for chunk in rest:
        first += chunk
    return first


async def pydantic_ai(url: str, *, stream: bool) -> None:
    from anthropic import AsyncAnthropic
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
    from pydantic_ai.providers.anthropic import AnthropicProvider

    client = AsyncAnthropic(base_url=url, api_key="sk-pydantic-ai", max_retries=0)
    settings = AnthropicModelSettings(max_tokens=1_200, anthropic_thinking=THINKING)
    model = AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))
    agent = Agent(model, instructions=SYSTEM, model_settings=settings, tools=[look_up])

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
