"""What providers' answers say of their tokens and prices, and what they cost by the published formula.

Each payload is written after its provider's documentation. Beside it stands its amount as plain arithmetic with the
published prices, those of a million tokens, and so in millionths of a US dollar: nothing here calls the code that is
tested. Fees for searches are those of a thousand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Bill:
    """One answer with status 200."""

    format: str
    asked: str
    """The model of the request."""
    answered: str
    """The model in the answer; empty where it names none."""
    usage: Json
    cost: float
    beside: Json
    """What else the answer says at its top level."""
    source: str
    priced: str
    """Whose price it is, where that is not the one that answered."""

    def __str__(self) -> str:
        return f"{self.format}-{self.answered or self.asked}"


def bill(
    format_: str,
    asked: str,
    usage: Json,
    millionths: float = 0.0,
    *,
    fee: float = 0.0,
    charged: float | None = None,
    answered: str | None = None,
    priced: str = "",
    **beside: Any,
) -> Bill:
    """A bill by the published prices, with a fee in thousandths; or what the provider charged, in dollars."""
    source, cost = ("registry", millionths / 1e6 + fee / 1e3) if charged is None else ("provider", charged)
    return Bill(format_, asked, asked if answered is None else answered, usage, cost, beside, source, priced)


chat, message, response = (partial(bill, name) for name in ("chat_completions", "messages", "responses"))


def plain(prompt: int, completion: int, total: int | None = None, **more: Any) -> Json:
    """Usage without details in Chat Completions."""
    total = prompt + completion if total is None else total
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}


def spoken(prompt: int, completion: int, cached: int = 0, reasoning: int = 0, **more: Any) -> Json:
    """OpenAI's usage in Chat Completions: cached tokens are among the prompt's, reasoning among the completion's."""
    return {
        **plain(prompt, completion),
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
        **more,
    }


def said(prompt: int, output: int, cached: int = 0, reasoning: int = 0, **more: Any) -> Json:
    """The same in Responses."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + output,
        **more,
    }


def claude(fresh: int, output: int, read: int = 0, minutes: int = 0, hour: int = 0, **more: Any) -> Json:
    """Anthropic's: what was read from the cache and written to it stands beside the input."""
    return {
        "input_tokens": fresh,
        "cache_creation_input_tokens": minutes + hour,
        "cache_read_input_tokens": read,
        "cache_creation": {"ephemeral_5m_input_tokens": minutes, "ephemeral_1h_input_tokens": hour},
        "output_tokens": output,
        "service_tier": "standard",
        "inference_geo": "global",
        **more,
    }


def search(action: str | None = "search", number: int = 1) -> Json:
    """OpenAI's item of a search of the web, or of what was done with one."""
    item: Json = {"type": "web_search_call", "id": f"ws_{number}", "status": "completed"}
    return item if action is None else {**item, "action": {"type": action, "query": "q"}}


def searched(number: int) -> Json:
    return {"server_tool_use": {"web_search_requests": number, "web_fetch_requests": 1}}


def sound(prompt: int, completion: int, heard: int, spoken_: int) -> Json:
    usage = spoken(prompt, completion)
    usage["prompt_tokens_details"] |= {"audio_tokens": heard, "text_tokens": prompt - heard}
    usage["completion_tokens_details"] |= {"audio_tokens": spoken_, "text_tokens": completion - spoken_}
    return usage


def beside(prompt: int, completion: int, reasoning: int, **more: Any) -> Json:
    """Usage whose completion is without its reasoning: xAI's and Vercel's in Chat Completions."""
    return spoken(prompt, completion, 0, reasoning, total_tokens=prompt + completion + reasoning, **more)


def routed(prompt: int, completion: int, cost: float, **more: Any) -> Json:
    """OpenRouter's: credits are US dollars."""
    details = {"upstream_inference_cost": None, "upstream_inference_prompt_cost": 0}
    return spoken(prompt, completion, **{"cost": cost, "is_byok": False, "cost_details": details, **more})


OPENAI_CHAT = [
    chat("gpt-4o", spoken(1_117, 46), 1_117 * 2.5 + 46 * 10, answered="gpt-4o-2024-08-06", service_tier="default"),
    chat("gpt-4o", spoken(2_006, 300, 1_920), 86 * 2.5 + 1_920 * 1.25 + 300 * 10, answered="gpt-4o-2024-11-20"),
    chat("gpt-4o", spoken(900, 60), 900 * 5 + 60 * 15, answered="gpt-4o-2024-05-13"),
    chat("gpt-4o-mini", spoken(57, 17), 57 * 0.15 + 17 * 0.6, answered="gpt-4o-mini-2024-07-18"),
    chat("gpt-4o-mini", spoken(9_000, 500, 8_448), 552 * 0.15 + 8_448 * 0.075 + 500 * 0.6),
    chat("gpt-4o", spoken(800, 90), 800 * 0.15 + 90 * 0.6, answered="gpt-4o-mini-2024-07-18"),
    chat("gpt-4.1", spoken(30_000, 1_000, 28_160), 1_840 * 2 + 28_160 * 0.5 + 1_000 * 8, answered="gpt-4.1-2025-04-14"),
    chat("gpt-4.1-mini", spoken(500, 100), 500 * 0.4 + 100 * 1.6, answered="gpt-4.1-mini-2025-04-14"),
    chat("gpt-4.1-nano", spoken(12_345, 678), 12_345 * 0.1 + 678 * 0.4),
    chat("gpt-4.1", spoken(900_000, 100), 900_000 * 2 + 100 * 8),
    chat("gpt-3.5-turbo", spoken(411, 92), 411 * 0.5 + 92 * 1.5, answered="gpt-3.5-turbo-0125"),
    chat("gpt-4", plain(100, 20), 100 * 30 + 20 * 60, answered="gpt-4-0613"),
    chat("o1", spoken(2_000, 1_500, 0, 1_216), 2_000 * 15 + 1_500 * 60, answered="o1-2024-12-17"),
    chat("o3", spoken(75, 1_186, 0, 1_024), 75 * 2 + 1_186 * 8, answered="o3-2025-04-16"),
    chat("o3-mini", spoken(75, 640, 0, 640), 75 * 1.1 + 640 * 4.4),
    chat("o4-mini", spoken(5_000, 900, 4_864, 704), 136 * 1.1 + 4_864 * 0.275 + 900 * 4.4),
    chat(
        "gpt-5",
        spoken(10_000, 2_000, 9_984, 1_600),
        16 * 1.25 + 9_984 * 0.125 + 2_000 * 10,
        answered="gpt-5-2025-08-07",
    ),
    chat("gpt-5-mini", spoken(1_000, 300, 0, 192), 1_000 * 0.25 + 300 * 2, answered="gpt-5-mini-2025-08-07"),
    chat("gpt-5-nano", spoken(1_000, 300), 1_000 * 0.05 + 300 * 0.4),
    chat("gpt-5.2", spoken(4_000, 100, 3_840), 160 * 1.75 + 3_840 * 0.175 + 100 * 14, service_tier="default"),
    # Tiers, by what the answer says and not by what was asked for.
    chat("gpt-5", spoken(1_000, 300), 1_000 * 0.625 + 300 * 5, service_tier="flex"),
    chat("gpt-5", spoken(3_000, 300, 2_944), 56 * 0.625 + 2_944 * 0.0625 + 300 * 5, service_tier="flex"),
    chat("gpt-5", spoken(3_000, 300, 2_944), 56 * 2.5 + 2_944 * 0.25 + 300 * 20, service_tier="priority"),
    chat("gpt-5-mini", spoken(1_000, 300), 1_000 * 0.45 + 300 * 3.6, service_tier="priority"),
    chat("gpt-4o", spoken(1_000, 300), 1_000 * 4.25 + 300 * 17, service_tier="priority"),
    chat("gpt-4.1", spoken(1_000, 300), 1_000 * 3.5 + 300 * 14, service_tier="priority"),
    chat("o3", spoken(1_000, 300), 1_000 * 1 + 300 * 4, service_tier="flex"),
    chat("gpt-4o", spoken(1_000, 300), 1_000 * 1.25 + 300 * 5, service_tier="batch"),
    chat("gpt-5", spoken(1_000, 300), 1_000 * 1.25 + 300 * 10, service_tier="auto"),
    chat("gpt-4o", spoken(1_000, 300), 1_000 * 2.5 + 300 * 10, service_tier="scale"),
    # Long prompts, by all their tokens.
    chat("gpt-5.4", spoken(272_000, 1_000), 272_000 * 2.5 + 1_000 * 15),
    chat("gpt-5.4", spoken(272_001, 1_000), 272_001 * 5 + 1_000 * 22.5),
    chat("gpt-5.4", spoken(300_000, 1_000, 290_000), 10_000 * 5 + 290_000 * 0.5 + 1_000 * 22.5),
    chat("gpt-5.4", spoken(300_000, 1_000), 300_000 * 2.5 + 1_000 * 11.25, service_tier="flex"),
    chat("gpt-5.5", spoken(400_000, 2_000, 0, 1_500), 400_000 * 10 + 2_000 * 45),
    chat(
        "gpt-5.6",
        spoken(20_000, 500, prompt_tokens_details={"cached_tokens": 12_000, "cache_write_tokens": 7_000}),
        1_000 * 4 + 12_000 * 0.4 + 7_000 * 5 + 500 * 20,
    ),
    chat(
        "gpt-5.6",
        spoken(280_000, 500, prompt_tokens_details={"cached_tokens": 200_000, "cache_write_tokens": 79_000}),
        1_000 * 16 + 200_000 * 1.6 + 79_000 * 20 + 500 * 60,
        service_tier="priority",
    ),
    # Sound.
    chat(
        "gpt-audio",
        sound(220, 180, 170, 130),
        50 * 2.5 + 170 * 32 + 50 * 10 + 130 * 64,
        answered="gpt-audio-2025-08-28",
    ),
    chat("gpt-audio-mini", sound(220, 180, 170, 130), 50 * 0.6 + 170 * 10 + 50 * 2.4 + 130 * 20),
    chat(
        "gpt-4o-audio-preview",
        sound(50, 40, 30, 30),
        20 * 2.5 + 30 * 40 + 10 * 10 + 30 * 80,
        answered="gpt-4o-audio-preview-2024-12-17",
    ),
    chat("gemini-2.5-flash", sound(2_000, 100, 1_900, 0), 100 * 0.3 + 1_900 * 1 + 100 * 2.5),
    # One search for each answer.
    chat(
        "gpt-4o-search-preview", spoken(8, 700), 8 * 2.5 + 700 * 10, fee=25, answered="gpt-4o-search-preview-2025-03-11"
    ),
    chat("gpt-4o-mini-search-preview", spoken(8, 700), 8 * 0.15 + 700 * 0.6, fee=25),
    chat(
        "gpt-5-search-api", spoken(4_800, 700), 4_800 * 1.25 + 700 * 10, fee=10, answered="gpt-5-search-api-2025-10-14"
    ),
    # What was tuned.
    chat("ft:gpt-4o-2024-08-06:acme::abc", spoken(1_000, 300), 1_000 * 3.75 + 300 * 15, priced="ft:gpt-4o-2024-08-06"),
    chat(
        "ft:gpt-4.1-mini-2025-04-14:acme:x:abc",
        spoken(1_000, 300),
        1_000 * 0.8 + 300 * 3.2,
        priced="ft:gpt-4.1-mini-2025-04-14",
    ),
    chat(
        "ft:gpt-5-mini-2025-08-07:acme::abc", spoken(1_000, 300), 1_000 * 0.25 + 300 * 2, priced="gpt-5-mini-2025-08-07"
    ),
    # A host has its own prices, and its answers do not name it.
    chat(
        "azure/us/gpt-5.4",
        spoken(1_000, 300),
        1_000 * 2.75 + 300 * 16.5,
        answered="gpt-5.4-2026-03-05",
        priced="azure/us/gpt-5.4",
    ),
    chat("azure/eu/gpt-5.4", spoken(1_000, 300), 1_000 * 0.15 + 300 * 0.6, answered="gpt-4o-mini-2024-07-18"),
    # A router that was asked for no model in particular.
    chat("auto", spoken(1_000, 300), 1_000 * 1.25 + 300 * 10, answered="openai/gpt-5"),
    chat("gpt-4o", spoken(1_000, 300), 1_000 * 2.5 + 300 * 10, answered="", priced="gpt-4o"),
    chat("gpt-4o", spoken(1_000, 300), 1_000 * 2.5 + 300 * 10, answered="chat-prod-eu", priced="gpt-4o"),
]

OTHERS_CHAT = [
    # xAI: reasoning stands beside the completion.
    chat("grok-4-fast", beside(160, 9, 320), 160 * 0.2 + 329 * 0.5, answered="grok-4-fast-reasoning"),
    chat("grok-4", beside(700, 100, 1_000), 700 * 3 + 1_100 * 15, answered="grok-4-0709"),
    chat(
        "grok-4",
        beside(700, 100, 1_000, prompt_tokens_details={"cached_tokens": 640}),
        60 * 3 + 640 * 0.75 + 1_100 * 15,
    ),
    chat("grok-3-mini", beside(30, 10, 40), 30 * 0.3 + 50 * 0.5),
    # It says so by the total, also where there is less of it than of the completion.
    chat("grok-3-mini", beside(30, 100, 40), 30 * 0.3 + 140 * 0.5),
    # And by the number, where the total is wrong or not there.
    chat("grok-4-fast", spoken(160, 9, 0, 320), 160 * 0.2 + 329 * 0.5),
    chat("grok-4-fast", spoken(160, 9, 0, 320, total_tokens=None), 160 * 0.2 + 329 * 0.5),
    chat("grok-4.7", spoken(250_000, 10), 250_000 * 4 + 10 * 12),
    chat("grok-4.7", spoken(200_000, 10), 200_000 * 2 + 10 * 6),
    chat("grok-code-fast-1", spoken(210_000, 10, 200_000), 10_000 * 2 + 200_000 * 0.4 + 10 * 4),
    # Its own bill: ticks, of which 10^10 are a dollar.
    chat("grok-4-fast", beside(160, 9, 320, cost_in_usd_ticks=37_756_000), charged=37_756_000 / 10**10),
    chat("grok-4", beside(160, 9, 320, cost_in_usd_ticks=158_500, num_sources_used=0), charged=0.00001585),
    chat("grok-new", spoken(160, 9, cost_in_usd_ticks=1), charged=1e-10, priced="-"),
    chat("grok-4", spoken(160, 9, cost_in_usd_ticks=0), charged=0.0),
    # DeepSeek.
    chat(
        "deepseek-chat",
        plain(1_000, 50, prompt_cache_hit_tokens=896, prompt_cache_miss_tokens=104),
        104 * 0.28 + 896 * 0.028 + 50 * 0.42,
    ),
    chat(
        "deepseek-reasoner",
        spoken(1_000, 500, 0, 400, prompt_cache_hit_tokens=0, prompt_cache_miss_tokens=1_000),
        1_000 * 0.28 + 500 * 0.42,
    ),
    # Gemini: thoughts are in the total alone.
    chat("gemini-2.5-flash", plain(20, 198, 623), 20 * 0.3 + 603 * 2.5),
    chat("gemini-2.5-pro", plain(20, 198), 20 * 1.25 + 198 * 10),
    chat("gemini-2.5-pro", plain(200_001, 100, 200_601), 200_001 * 2.5 + 600 * 15),
    chat("gemini-2.5-pro", spoken(200_000, 100), 200_000 * 1.25 + 100 * 10),
    chat("google/gemini-2.5-pro", spoken(250_000, 100, 240_000), 10_000 * 2.5 + 240_000 * 0.25 + 100 * 15),
    chat("gemini-2.5-flash-lite", spoken(1_000, 100, 600), 400 * 0.1 + 600 * 0.01 + 100 * 0.4),
    # Moonshot, Mistral, Z.ai, MiniMax, Alibaba.
    chat("kimi-k2.5", plain(1_000, 100, cached_tokens=768), 232 * 0.6 + 768 * 0.1 + 100 * 3),
    chat("mistral-large-latest", plain(17, 25), 17 * 0.5 + 25 * 1.5),
    chat("glm-4.6", spoken(2_000, 100, 1_800), 200 * 0.6 + 1_800 * 0.11 + 100 * 2.2),
    chat("minimax-m2", spoken(2_000, 100), 2_000 * 0.3 + 100 * 1.2),
    chat("qwen3-max", spoken(32_000, 100), 32_000 * 1.2 + 100 * 6),
    chat("qwen3-max", spoken(32_001, 100), 32_001 * 2.4 + 100 * 12),
    chat("qwen3-max", spoken(150_000, 100), 150_000 * 3 + 100 * 15),
    chat("qwen-flash", spoken(300_000, 100), 300_000 * 0.25 + 100 * 2),
    # Claude through a gateway that speaks this format: the cache's parts among the prompt's tokens.
    chat(
        "claude-sonnet-4-5",
        spoken(10_000, 100, 8_000, cache_read_input_tokens=8_000, cache_creation_input_tokens=1_500),
        500 * 3 + 8_000 * 0.3 + 1_500 * 3.75 + 100 * 15,
    ),
    # OpenRouter: credits are US dollars, and whatever answered.
    chat("openai/gpt-4o", routed(194, 2, 0.000505), charged=0.000505),
    chat(
        "anthropic/claude-sonnet-4.5",
        routed(1_000, 500, 0.0105),
        charged=0.0105,
        answered="anthropic/claude-4.5-sonnet-20250929",
        priced="anthropic/claude-sonnet-4.5",
    ),
    chat(
        "openrouter/auto", routed(1_000, 500, 0.00123), charged=0.00123, answered="some/model-nobody-lists", priced="-"
    ),
    chat("meta-llama/llama-3.3-70b-instruct:free", routed(1_000, 500, 0), charged=0.0, priced="-"),
    chat(
        "x-ai/grok-4-fast",
        routed(160, 329, 0.0001965, completion_tokens_details={"reasoning_tokens": 320}),
        charged=0.0001965,
    ),
    chat(
        "openai/gpt-4o",
        routed(
            1_000,
            100,
            0.0035,
            cost_details={"upstream_inference_cost": 0.0035, "upstream_inference_completions_cost": 0.001},
        ),
        charged=0.0035,
    ),
    # With a key of one's own: the fee, and what that provider charged.
    chat(
        "openai/gpt-4o",
        routed(1_000, 100, 0.000175, is_byok=True, cost_details={"upstream_inference_cost": 0.0035}),
        charged=0.000175 + 0.0035,
    ),
    chat(
        "openai/gpt-4o",
        routed(1_000, 100, 0, is_byok=True, cost_details={"upstream_inference_cost": 0.0035}),
        charged=0.0035,
    ),
    chat("openai/gpt-4o", routed(1_000, 100, 0.000175, is_byok=True), 1_000 * 2.5 + 100 * 10),
    chat("openai/gpt-4o", spoken(194, 2, cost=0.95, cost_details={"upstream_inference_cost": 19}), charged=19.95),
    # Vercel's gateway, with reasoning beside the completion; and its bill as text.
    chat(
        "xai/grok-4-fast", beside(160, 9, 320, cost=0.0001965, market_cost=0.0001965, is_byok=False), charged=0.0001965
    ),
    chat("openai/gpt-5", beside(100, 50, 64), 100 * 1.25 + 114 * 10),
    chat("openai/gpt-5", spoken(100, 114, cost="0.001265"), charged=0.001265),
    # Perplexity and DeepInfra.
    chat(
        "sonar-pro",
        {
            "prompt_tokens": 12,
            "completion_tokens": 300,
            "total_tokens": 312,
            "search_context_size": "low",
            "cost": {
                "input_tokens_cost": 0.000036,
                "output_tokens_cost": 0.0045,
                "request_cost": 0.006,
                "total_cost": 0.010536,
            },
        },
        charged=0.010536,
    ),
    chat("deepseek-ai/DeepSeek-V3.2", spoken(15, 16, estimated_cost=0.00001063), charged=0.00001063),
    # What can be no bill is none.
    chat("gpt-4o", spoken(1_000, 100, cost=-1), 1_000 * 2.5 + 100 * 10),
    chat("gpt-4o", spoken(1_000, 100, cost="much"), 1_000 * 2.5 + 100 * 10),
    chat("gpt-4o", spoken(1_000, 100, cost=True), 1_000 * 2.5 + 100 * 10),
    chat("gpt-4o", spoken(1_000, 100, cost=None, cost_in_usd_ticks=None), 1_000 * 2.5 + 100 * 10),
    chat("gpt-4o", spoken(1_000, 100, cost="nan"), 1_000 * 2.5 + 100 * 10),
]

MESSAGES = [
    message("claude-sonnet-4-5", claude(2_095, 503), 2_095 * 3 + 503 * 15, answered="claude-sonnet-4-5-20250929"),
    message("claude-sonnet-4-5", claude(21, 393, 188_086), 21 * 3 + 188_086 * 0.3 + 393 * 15),
    message("claude-sonnet-4-5", claude(21, 393, 0, 188_086), 21 * 3 + 188_086 * 3.75 + 393 * 15),
    message("claude-sonnet-4-5", claude(50, 10, 0, 0, 20_000), 50 * 3 + 20_000 * 6 + 10 * 15),
    message(
        "claude-sonnet-4-5", claude(50, 503, 1_800, 456, 100), 50 * 3 + 1_800 * 0.3 + 456 * 3.75 + 100 * 6 + 503 * 15
    ),
    message(
        "claude-sonnet-4-5",
        {"input_tokens": 50, "output_tokens": 10, "cache_creation_input_tokens": 900},
        50 * 3 + 900 * 3.75 + 10 * 15,
    ),
    message(
        "claude-sonnet-4-5",
        {
            "input_tokens": 50,
            "output_tokens": 10,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        },
        50 * 3 + 10 * 15,
    ),
    message(
        "claude-haiku-4-5",
        claude(1_000, 200, 500),
        1_000 * 1 + 500 * 0.1 + 200 * 5,
        answered="claude-haiku-4-5-20251001",
    ),
    message("claude-haiku-4-5", claude(0, 200, 0, 100, 300), 100 * 1.25 + 300 * 2 + 200 * 5),
    message(
        "claude-opus-4-1",
        claude(1_000, 200, 0, 0, 400),
        1_000 * 15 + 400 * 30 + 200 * 75,
        answered="claude-opus-4-1-20250805",
    ),
    message(
        "claude-opus-4",
        claude(1_000, 200, 300, 400),
        1_000 * 15 + 300 * 1.5 + 400 * 18.75 + 200 * 75,
        answered="claude-opus-4-20250514",
    ),
    message("claude-opus-4-5", claude(1_000, 200), 1_000 * 5 + 200 * 25, answered="claude-opus-4-5-20251101"),
    message(
        "claude-opus-4-6", claude(1_000, 200, 300, 400, 500), 1_000 * 5 + 300 * 0.5 + 400 * 6.25 + 500 * 10 + 200 * 25
    ),
    message("claude-opus-4-6", claude(500_000, 200), 500_000 * 5 + 200 * 25),
    message("claude-sonnet-4-6", claude(300_000, 200, 100_000), 300_000 * 3 + 100_000 * 0.3 + 200 * 15),
    message("claude-opus-4-7", claude(1_000, 200), 1_000 * 5 + 200 * 25),
    message("claude-sonnet-5", claude(1_000, 200, 300, 400), 1_000 * 2 + 300 * 0.2 + 400 * 2.5 + 200 * 10),
    # Thoughts are among the output.
    message(
        "claude-opus-4-5",
        claude(1_000, 2_000, output_tokens_details={"thinking_tokens": 1_800}),
        1_000 * 5 + 2_000 * 25,
    ),
    # Long prompts, with what came from the cache.
    message("claude-sonnet-4-5", claude(200_001, 100), 200_001 * 6 + 100 * 22.5),
    message("claude-sonnet-4-5", claude(200_000, 100), 200_000 * 3 + 100 * 15),
    message(
        "claude-sonnet-4-5", claude(1_000, 100, 150_000, 50_000), 1_000 * 6 + 150_000 * 0.6 + 50_000 * 7.5 + 100 * 22.5
    ),
    message(
        "claude-sonnet-4-5",
        claude(1_000, 100, 150_000, 20_000, 30_000),
        1_000 * 6 + 150_000 * 0.6 + 20_000 * 7.5 + 30_000 * 12 + 100 * 22.5,
    ),
    message("claude-haiku-5-5", claude(100_001, 100), 100_001 * 0.5 + 100 * 2.5),
    message(
        "claude-haiku-5-5", claude(1_000, 100, 100_000, 0, 2_000), 1_000 * 0.5 + 100_000 * 0.05 + 2_000 * 1 + 100 * 2.5
    ),
    message("claude-haiku-5-5", claude(1_000, 100, 0, 2_000), 1_000 * 0.1 + 2_000 * 0.125 + 100 * 0.5),
    # Tiers and regions.
    message(
        "claude-sonnet-4-5",
        claude(1_000, 100, 200, 300, 400, service_tier="batch"),
        1_000 * 1.5 + 200 * 0.15 + 300 * 1.875 + 400 * 3 + 100 * 7.5,
    ),
    message("claude-haiku-4-5", claude(1_000, 100, service_tier="batch"), 1_000 * 0.5 + 100 * 2.5),
    message("claude-sonnet-4-5", claude(1_000, 100, service_tier="priority"), 1_000 * 3 + 100 * 15),
    message(
        "claude-opus-4-6",
        claude(1_000, 100, 200, 300, 400, inference_geo="us"),
        1.1 * (1_000 * 5 + 200 * 0.5 + 300 * 6.25 + 400 * 10 + 100 * 25),
    ),
    message("claude-sonnet-4-6", claude(1_000, 100, inference_geo="us"), 1.1 * (1_000 * 3 + 100 * 15)),
    message("claude-sonnet-4-6", claude(1_000, 100, inference_geo="not_available"), 1_000 * 3 + 100 * 15),
    message(
        "claude-opus-4-6",
        claude(1_000, 100, inference_geo="us", service_tier="batch"),
        1.1 * (1_000 * 2.5 + 100 * 12.5),
    ),
    message("claude-opus-4-8", claude(1_000, 100, 500, speed="fast"), 1_000 * 10 + 500 * 1 + 100 * 50),
    message("claude-opus-4-8", claude(1_000, 100, 500, speed="standard"), 1_000 * 5 + 500 * 0.5 + 100 * 25),
    message("claude-haiku-5-5", claude(150_000, 100, inference_geo="us"), 1.1 * (150_000 * 0.5 + 100 * 2.5)),
    # Searches of the web: 10 dollars for a thousand, in every region.
    message("claude-sonnet-4-5", claude(105, 6_039, **searched(1)), 105 * 3 + 6_039 * 15, fee=1 * 10),
    message(
        "claude-opus-4-6",
        claude(105, 6_039, 7_123, 7_345, **searched(4)),
        105 * 5 + 7_123 * 0.5 + 7_345 * 6.25 + 6_039 * 25,
        fee=4 * 10,
    ),
    message(
        "claude-opus-4-6", claude(105, 39, inference_geo="us", **searched(2)), 1.1 * (105 * 5 + 39 * 25), fee=2 * 10
    ),
    message("claude-sonnet-4-5", claude(105, 39, server_tool_use=None), 105 * 3 + 39 * 15),
    message("claude-sonnet-4-5", claude(105, 39, server_tool_use={"web_search_requests": "3"}), 105 * 3 + 39 * 15),
    # Bedrock's regions have prices of their own, which its answers do not name.
    message(
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        claude(1_000, 100, 200, 300),
        1_000 * 3.3 + 200 * 0.33 + 300 * 4.125 + 100 * 16.5,
        answered="claude-sonnet-4-5-20250929",
        priced="us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    ),
    message("us.anthropic.claude-opus-4-6-v1", claude(1_000, 100, 0, 0, 300), 1_000 * 5.5 + 300 * 11 + 100 * 27.5),
    # A provider that compacted the history itself: both calls are charged.
    message(
        "claude-opus-4-6",
        {
            **claude(181, 20),
            "iterations": [
                {"type": "compaction", "input_tokens": 55_196, "output_tokens": 1_500, "cache_read_input_tokens": 0},
                {"type": "message", "input_tokens": 181, "output_tokens": 20, "cache_read_input_tokens": 39},
            ],
        },
        (55_196 + 181) * 5 + 39 * 0.5 + 1_520 * 25,
    ),
    # Others that speak this format.
    message("deepseek-chat", claude(100, 50, 900), 100 * 0.28 + 900 * 0.028 + 50 * 0.42),
    message("kimi-k2.5", claude(100, 50, 900), 100 * 0.6 + 900 * 0.1 + 50 * 3),
    message("minimax-m2", claude(100, 50, 900, 400), 100 * 0.3 + 900 * 0.03 + 400 * 0.375 + 50 * 1.2),
    message(
        "glm-4.6",
        {"input_tokens": 100, "output_tokens": 50, "cache_read_input_tokens": 900, "service_tier": "standard"},
        100 * 0.6 + 900 * 0.11 + 50 * 2.2,
    ),
    message("anthropic/claude-sonnet-4.5", claude(100, 50, cost=0.00105, is_byok=False), charged=0.00105),
    message(
        "anthropic/claude-sonnet-4.5",
        claude(100, 50, cost=0.00005, is_byok=True, cost_details={"upstream_inference_cost": 0.00105}),
        charged=0.00005 + 0.00105,
    ),
    message("grok-4", claude(100, 50, cost_in_usd_ticks=10_500_000), charged=0.00105),
]

RESPONSES = [
    response("gpt-4o", said(36, 87), 36 * 2.5 + 87 * 10, answered="gpt-4o-2024-08-06", service_tier="default"),
    response("gpt-4.1", said(36_000, 87, 35_840), 160 * 2 + 35_840 * 0.5 + 87 * 8, answered="gpt-4.1-2025-04-14"),
    response("gpt-5", said(75, 1_186, 0, 1_024), 75 * 1.25 + 1_186 * 10, answered="gpt-5-2025-08-07"),
    response("gpt-5-codex", said(52_000, 900, 51_200, 512), 800 * 1.25 + 51_200 * 0.125 + 900 * 10),
    response("gpt-5.1-codex", said(52_000, 900, 51_200), 800 * 1.25 + 51_200 * 0.125 + 900 * 10),
    response("gpt-5.3-codex", said(52_000, 900, 51_200), 800 * 1.75 + 51_200 * 0.175 + 900 * 14),
    response("gpt-5.3-codex", said(52_000, 900, 51_200), 800 * 3.5 + 51_200 * 0.35 + 900 * 28, service_tier="priority"),
    response("gpt-5-pro", said(1_000, 5_000, 0, 4_800), 1_000 * 15 + 5_000 * 120, answered="gpt-5-pro-2025-10-06"),
    response("o3-pro", said(1_000, 5_000, 0, 4_800), 1_000 * 20 + 5_000 * 80),
    response("codex-mini", said(1_000, 500, 400), 600 * 1.5 + 400 * 0.375 + 500 * 6),
    response("gpt-5", said(1_000, 500), 1_000 * 0.625 + 500 * 5, service_tier="flex"),
    response("gpt-5", said(1_000, 500), 1_000 * 2.5 + 500 * 20, service_tier="priority"),
    response("o4-mini", said(1_000, 500, 800), 200 * 0.55 + 800 * 0.138 + 500 * 2.2, service_tier="flex"),
    response("gpt-5.4", said(280_000, 500, 270_000), 10_000 * 5 + 270_000 * 0.5 + 500 * 22.5),
    response("gpt-5.4", said(280_000, 500), 280_000 * 2.5 + 500 * 11.25, service_tier="flex"),
    response("gpt-5.4", said(271_999, 500), 271_999 * 5 + 500 * 30, service_tier="priority"),
    response("gpt-5.5", said(1_000, 500), 1_000 * 12.5 + 500 * 75, service_tier="priority"),
    response(
        "gpt-5.6",
        said(20_000, 190, input_tokens_details={"cached_tokens": 15_000, "cache_write_tokens": 4_000}),
        1_000 * 4 + 15_000 * 0.4 + 4_000 * 5 + 190 * 20,
    ),
    # Searches are items of the output; to open a page that was found costs nothing.
    response("gpt-5", said(9_000, 500), 9_000 * 1.25 + 500 * 10, fee=1 * 10, output=[search()]),
    response(
        "gpt-5",
        said(9_000, 500),
        9_000 * 1.25 + 500 * 10,
        fee=2 * 10,
        output=[search(number=1), search("open_page"), search("find_in_page"), search(number=2)],
    ),
    response("gpt-5", said(9_000, 500), 9_000 * 1.25 + 500 * 10, output=[search("open_page")]),
    response(
        "o4-mini",
        said(9_000, 500),
        9_000 * 1.1 + 500 * 4.4,
        fee=3 * 10,
        output=[search(number=number) for number in range(3)],
    ),
    response("gpt-4.1", said(300, 500), 300 * 2 + 500 * 8, fee=1 * 25, output=[search(None)]),
    response("gpt-4o-mini", said(8_300, 500), 8_300 * 0.15 + 500 * 0.6, fee=1 * 25, output=[search()]),
    response("gpt-5", said(9_000, 500), 9_000 * 0.625 + 500 * 5, fee=1 * 10, output=[search()], service_tier="flex"),
    response(
        "gpt-5",
        said(300, 500),
        300 * 1.25 + 500 * 10,
        output=[{"type": "function_call", "name": "f", "arguments": '{"type":"web_search_call"}', "call_id": "c"}],
    ),
    # xAI and OpenRouter.
    response("grok-4", said(36_361, 1_252, 192, 763, cost_in_usd_ticks=483_796_500), charged=0.04837965),
    response("grok-4.7", said(21_365, 3_646, 10_496), 10_869 * 2 + 10_496 * 0.5 + 3_646 * 6),
    response(
        "openai/gpt-5",
        said(100, 50, cost=0.000625, is_byok=False, cost_details={"upstream_inference_cost": None}),
        charged=0.000625,
    ),
    response(
        "openai/gpt-5",
        said(100, 50, cost=0, is_byok=True, cost_details={"upstream_inference_cost": 0.000625}),
        charged=0.000625,
    ),
    # Reasoning beside the output.
    response("grok-4", said(100, 50, 0, 70, total_tokens=220), 100 * 3 + 120 * 15),
    # A router, a host, what was tuned, and an answer that was cut off.
    response("gpt-5.4", said(1_000, 500), 1_000 * 0.25 + 500 * 2, answered="gpt-5-mini-2025-08-07"),
    response(
        "azure/us/gpt-5.4", said(1_000, 500), 1_000 * 2.75 + 500 * 16.5, answered="gpt-5.4", priced="azure/us/gpt-5.4"
    ),
    response("ft:gpt-4.1-2025-04-14:acme::abc", said(1_000, 500), 1_000 * 3 + 500 * 12, priced="ft:gpt-4.1-2025-04-14"),
    response(
        "gpt-5-mini",
        said(1_000, 64, 0, 64),
        1_000 * 0.25 + 64 * 2,
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
    ),
]

BILLS = [*OPENAI_CHAT, *OTHERS_CHAT, *MESSAGES, *RESPONSES]
