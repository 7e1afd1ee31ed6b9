"""Refusals in the words of real providers, with made-up numbers: too large a prompt, and what only looks like it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Refused(NamedTuple):
    """An overflow, and the numbers it discloses."""

    name: str
    body: Any
    limit: int | None = None
    prompt: int | None = None
    requested: int | None = None
    status: int = 400


class Other(NamedTuple):
    """A refusal for another reason."""

    name: str
    body: Any
    status: int = 400


def openai(message: str, **members: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", **members}}


def google(message: str) -> dict[str, Any]:
    return {"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}


def vllm(message: str, type_: str = "BadRequestError") -> dict[str, Any]:
    return {"object": "error", "message": message, "type": type_, "param": None, "code": 400}


OVERFLOWS = [
    Refused(
        "openai, completion with the prompt",
        openai(
            "This model's maximum context length is 8193 tokens, however you requested 9361 tokens (7361 in"
            " your prompt;"
            " 2000 for the completion). Please reduce your prompt; or completion length."
        ),
        8_193,
        7_361,
        9_361,
    ),
    Refused(
        "openai, counted and told by its code",
        openai(
            "This model's maximum context length is 400000 tokens. However, your messages resulted in 412345 tokens.",
            param="messages",
            code="context_length_exceeded",
        ),
        400_000,
        412_345,
        412_345,
    ),
    Refused("openai, responses", openai("Your input exceeds the context window of this model.", param="input")),
    Refused(
        "anthropic",
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 1048811 tokens > 1000000 maximum",
            },
        },
        1_000_000,
        1_048_811,
        1_048_811,
    ),
    Refused(
        "anthropic, with the output",
        openai(
            "input length and `max_tokens` exceed context limit: 188321 + 20000 > 200000, decrease input length or"
            " `max_tokens` and try again"
        ),
        200_000,
        188_321,
        208_321,
    ),
    Refused("anthropic, no numbers", openai("Prompt is too long"), status=413),
    Refused("anthropic, by the size", openai("Request size exceeds model context window"), status=413),
    Refused("bedrock", {"message": "Input is too long for requested model."}),
    Refused(
        "bedrock, titan",
        {
            "message": "400 Bad Request: Too many input tokens. Max input tokens: 42000, request input token"
            " count: 51234 "
        },
        42_000,
        51_234,
        51_234,
    ),
    Refused(
        "bedrock, titan, not counted",
        {"message": "Too many input tokens. Max input tokens: 8192."},
        8_192,
    ),
    Refused(
        "bedrock, nova",
        {"message": "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input."},
    ),
    Refused(
        "bedrock, llama",
        {"message": "This model's maximum context length is 131072 tokens. Please reduce the length of the prompt"},
        131_072,
    ),
    Refused(
        "bedrock, mistral",
        {
            "message": "Prompt contains 35211 tokens and 0 draft tokens, too large for model with 32768 maximum context"
            " length"
        },
        32_768,
        35_211,
        35_211,
    ),
    Refused(
        "gemini",
        google("The input token count (2097153) exceeds the maximum number of tokens allowed (1048575)."),
        1_048_575,
        2_097_153,
        2_097_153,
    ),
    Refused(
        "vertex",
        google(
            "Unable to submit request because the input token count is 40211 but model only supports up to"
            " 32768. Reduce"
            " the input token count and try again. You can also use the CountTokens API to calculate prompt"
            " token count."
        ),
        32_768,
        40_211,
        40_211,
    ),
    Refused(
        "openrouter",
        {
            "error": {
                "message": "This endpoint's maximum context length is 163840 tokens. However, you requested"
                " about 170001"
                " tokens (150000 of text input, 4001 of tool input, 16000 in the output). Please reduce the length of"
                " either one, or use the context-compression plugin to compress your prompt automatically.",
                "code": 400,
                "metadata": {"provider_name": None},
            }
        },
        163_840,
        150_000,
        170_001,
    ),
    Refused(
        "openrouter, poolside behind it",
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {
                    "raw": '{"error":{"code":400,"message":"Input length 140021 exceeds the maximum allowed'
                    " input length"
                    ' of 131040 tokens.","type":"Bad Request"}}',
                    "provider_name": "Poolside",
                },
            }
        },
        131_040,
        140_021,
        140_021,
    ),
    Refused(
        "poolside",
        {
            "error": {
                "code": 400,
                "message": "Input length 264999 exceeds the maximum allowed input length of 262112 tokens.",
                "type": "Bad Request",
            }
        },
        262_112,
        264_999,
        264_999,
    ),
    Refused(
        "lm studio",
        {
            "error": "Trying to keep the first 7312 tokens when context the overflows. However, the model is"
            " loaded with"
            " context length of only 4096 tokens, which is not enough. Try to load the model with a larger context"
            " length, or provide a shorter input"
        },
        4_096,
        7_312,
        7_312,
    ),
    Refused(
        "lm studio, older",
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length."
            " Try to load"
            " the model with a larger context length, or provide a shorter input"
        },
    ),
    Refused(
        "sambanova",
        openai(
            "The maximum context length of DeepSeek-V3-0324 is 32768. However, answering your request will take 41277"
            " tokens. Please reduce the length of the messages or the specified max_completion_tokens value."
        ),
        32_768,
        None,
        41_277,
    ),
    Refused(
        "sambanova, a version in the name",
        openai(
            "The maximum context length of Meta-Llama-3.3-70B-Instruct is 131072. However, answering your request will"
            " take 150000 tokens. Please reduce the length of the messages or the specified"
            " max_completion_tokens value."
        ),
        131_072,
        None,
        150_000,
    ),
    Refused(
        "sambanova, older",
        openai(
            "Requested generation length 1 is not possible! The provided prompt is 5120 tokens long, so generating 1"
            " tokens requires a sequence length of 5121, but the maximum supported sequence length is just 4096!"
        ),
        4_096,
        5_120,
        5_120,
    ),
    Refused(
        "cohere v2",
        {
            "id": "0a1b",
            "message": "too many tokens: size limit exceeded by 4211 tokens. Try using shorter or fewer inputs."
            " The limit for this model is 132000 tokens.",
        },
        132_000,
    ),
    Refused(
        "cohere v2, by type",
        {
            "error_type": "TOO_MANY_TOKENS",
            "message": "too many tokens: size limit exceeded by 77 tokens. The limit for this model is 256000 tokens.",
        },
        256_000,
    ),
    Refused(
        "cohere v2, no limit",
        {
            "message": "too many tokens: size limit exceeded by 910 tokens. Try using shorter or fewer inputs,"
            " or setting"
            " prompt_truncation='AUTO'."
        },
    ),
    Refused("cohere, several hops", {"message": "too many tokens: multi-hop prompt is too long even after truncation"}),
    Refused(
        "tensorrt-llm, sum",
        vllm("The sum of prompt length (9105.0), query length (0) should not exceed max_num_tokens (8192)"),
        8_192,
        9_105,
        9_105,
    ),
    Refused(
        "tensorrt-llm, sum with the output",
        vllm(
            "The sum of prompt length (30000), query length (0) and max_tokens (4096) should not exceed max_seq_len"
            " (32768)"
        ),
        32_768,
        30_000,
        34_096,
    ),
    Refused(
        "tensorrt-llm, default",
        vllm(
            "`default_max_tokens` (-912) must be greater than 0, `default_max_tokens` (-912) = max_seq_len (8192) -"
            " `splited_prompt_len` (9104) - `query_token_len` (0)"
        ),
        8_192,
        9_104,
        9_104,
    ),
    Refused(
        "tensorrt-llm, executor",
        vllm(
            "Encountered an error when fetching new request: Prompt length (5300) exceeds maximum input length (4096)."
        ),
        4_096,
        5_300,
        5_300,
    ),
    Refused("zhipu", {"error": {"code": "1261", "message": "Prompt \u8d85\u957f"}}),
    Refused(
        "zhipu, in a sentence",
        {
            "error": {
                "code": "1261",
                "message": "\u8f93\u5165\u957f\u5ea6\u8d85\u8fc7\u6a21\u578b\u6700\u5927\u4e0a\u4e0b"
                "\u6587\u957f\u5ea6\uff0c\u6700\u5927 131072 tokens",
            }
        },
        131_072,
    ),
    Refused(
        "a gateway in chinese",
        openai("\u4e0a\u4e0b\u6587\u957f\u5ea6\u8d85\u51fa\u9650\u5236\uff0c\u8bf7\u7f29\u77ed\u5bf9\u8bdd"),
    ),
    Refused("z.ai", {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
    Refused(
        "sglang",
        vllm("The input (70001 tokens) is longer than the model's context length (65536 tokens)."),
        65_536,
        70_001,
        70_001,
    ),
    Refused(
        "sglang, by memory",
        vllm(
            "Input length (60111 tokens) exceeds the maximum allowed length (59862 tokens). Use a shorter input"
            " or enable"
            " --allow-auto-truncate."
        ),
        59_862,
        60_111,
        60_111,
    ),
    Refused(
        "sglang, with the output",
        vllm(
            "Requested token count exceeds the model's maximum context length of 40960 tokens. You requested a total of"
            " 44096 tokens: 40000 tokens from the input messages and 4096 tokens for the completion. Please reduce the"
            " number of tokens in the input messages or the completion to fit within the limit."
        ),
        40_960,
        40_000,
        44_096,
    ),
    Refused(
        "sglang, multimodal",
        vllm(
            "Multimodal prompt is too long after expanding multimodal tokens. After expanding"
            " len(req.origin_input_ids_unpadded)=9000 => 12000 >= 8192."
        ),
        8_192,
        12_000,
        12_000,
    ),
    Refused(
        "vllm",
        vllm(
            "This model's maximum context length is 16384 tokens. However, your request has 18333 input tokens. Please"
            " reduce the length of the input messages. None"
        ),
        16_384,
        18_333,
        18_333,
    ),
    Refused(
        "vllm, at least",
        vllm(
            "This model's maximum context length is 32768 tokens. However, you requested 4096 output tokens and your"
            " prompt contains at least 28673 input tokens, for a total of at least 32769 tokens. Please reduce"
            " the length"
            " of the input prompt or the number of requested output tokens."
        ),
        32_768,
        28_673,
        32_769,
    ),
    Refused(
        "vllm, decoder",
        vllm(
            "The decoder prompt (length 163841) is longer than the maximum model length of 131072. Make sure that"
            " `max_model_len` is no smaller than the number of text tokens plus multimodal tokens."
        ),
        131_072,
        163_841,
        163_841,
    ),
    Refused(
        "fireworks",
        openai("The prompt is too long: 1000008, model maximum context length: 131071"),
        131_071,
        1_000_008,
        1_000_008,
    ),
    Refused(
        "together",
        openai(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 32769. Given: 33021 `inputs` tokens"
            " and 512 `max_new_tokens`"
        ),
        32_769,
        33_021,
        33_533,
        422,
    ),
    Refused(
        "together, no numbers",
        openai(
            "Input token count + max_tokens parameter must be less than the context length of the model being queried."
            " Set max_tokens to a lower number."
        ),
    ),
    Refused(
        "mistral",
        {
            "object": "error",
            "message": "Prompt 262280 > 262144 maximum context length",
            "type": "invalid_request_error",
            "code": "3051",
        },
        262_144,
        262_280,
        262_280,
    ),
    Refused(
        "moonshot",
        openai("Invalid request: Your request exceeded model token limit: 262144 (requested: 263162)"),
        262_144,
        None,
        263_162,
    ),
    Refused("minimax", openai("invalid params, context window exceeds limit (2013)")),
    Refused("baidu", openai("The total length of all messages is too long.")),
    Refused(
        "volcengine",
        {
            "error": {
                "code": "OutofContextError",
                "message": "Total tokens of image and text exceed max message tokens. Request id: 0217",
                "type": "BadRequest",
            }
        },
    ),
    Refused(
        "volcengine, counted",
        {
            "error": {
                "code": "InvalidParameter",
                "message": "Input length 203743 exceeds the maximum length 202752",
                "type": "BadRequest",
            }
        },
        202_752,
        203_743,
        203_743,
    ),
    Refused(
        "siliconflow",
        {
            "code": 20015,
            "message": "length of prompt_tokens (41000) must be less than max_seq_len (32768).",
            "data": None,
        },
        32_768,
        41_000,
        41_000,
    ),
    Refused(
        "siliconflow, total",
        {"code": 20015, "message": "max_total_tokens (40960) must be less than or equal to max_seq_len (32768)"},
        32_768,
        None,
        40_960,
    ),
    Refused(
        "llama.cpp",
        {
            "error": {
                "code": 400,
                "message": "request (9120 tokens) exceeds the available context size (8192 tokens), try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 9_120,
                "n_ctx": 8_192,
            }
        },
        8_192,
        9_120,
        9_120,
    ),
    Refused("llama-cpp-python", openai("Requested tokens (3051) exceed context window of 2048"), 2_048, None, 3_051),
    Refused(
        "ds4",
        openai("Prompt tokens (40001) exceeds context size (32768)", n_prompt_tokens=40_001, n_ctx=32_768),
        32_768,
        40_001,
        40_001,
    ),
    Refused(
        "xai",
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 256000 but the request contains 300211 tokens.",
        },
        256_000,
        None,
        300_211,
    ),
    Refused("ollama", {"error": "the input length exceeds the context length"}),
    Refused("salesforce", {"message": "Request input tokens exceed model token limit. Reduce the input size."}),
]

NEGATIVES = [
    Other(
        "bedrock's output cap",
        {
            "message": "The maximum tokens you requested exceeds the model limit of 8192. Try again with a"
            " maximum tokens"
            " value that is lower than 8192."
        },
    ),
    Other(
        "bedrock's output cap, short", {"message": "The maximum tokens you requested exceeds the model limit of 32768"}
    ),
    Other(
        "bedrock's schema",
        {
            "message": "Malformed input request: #/max_tokens: 65536 is not less or equal to 8192, please reformat your"
            " input and try again."
        },
    ),
    Other(
        "bedrock's characters",
        {
            "message": "Malformed input request: expected maxLength: 42000, actual: 61234, please reformat your"
            " input and"
            " try again."
        },
    ),
    Other("bedrock, busy", {"message": "Too many tokens, please wait before trying again."}),
    Other("bedrock, day", {"message": "Too many tokens per day, please wait before trying again."}, 429),
    Other(
        "gemini's output cap",
        google(
            "Unable to submit request because it has a maxOutputTokens value of 131072 but the supported range"
            " is from 1"
            " (inclusive) to 65537 (exclusive). Update the value and try again."
        ),
    ),
    Other(
        "tgi's output",
        {"error": "Input validation error: `max_new_tokens` must be strictly positive", "error_type": "validation"},
        422,
    ),
    Other(
        "tgi's stop words",
        {
            "error": "Input validation error: `stop` supports up to 4 stop sequences. Given: 5",
            "error_type": "validation",
        },
        422,
    ),
    Other(
        "tgi's output cap",
        {"error": "Input validation error: `max_new_tokens` must be <= 4096. Given: 8000", "error_type": "validation"},
        422,
    ),
    Other(
        "openrouter's credit, its status in the body",
        {
            "error": {
                "message": "Prompt tokens limit exceeded: 81002 > 22012. To increase, visit"
                " https://openrouter.ai/settings/credits and upgrade to a paid account",
                "code": 402,
            }
        },
    ),
    Other(
        "openrouter's key",
        {
            "error": {
                "message": "Prompt tokens limit exceeded: 230000 > 91000. To increase, visit"
                " https://openrouter.ai/settings/keys and create a key with a higher monthly limit",
                "code": 400,
            }
        },
    ),
    Other(
        "openrouter's credit for the output",
        {
            "error": {
                "message": "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens,"
                " but can only afford 30104. To increase, visit https://openrouter.ai/settings/credits",
                "code": 402,
            }
        },
        402,
    ),
    Other(
        "openai's batch queue",
        {
            "error": {
                "message": "Enqueued token limit reached for gpt-4o-mini in organization org-x. Limit: 2,000,000"
                " enqueued tokens. Please try again once some in_progress batches have been completed.",
                "code": "token_limit_exceeded",
            }
        },
    ),
    Other("openai's batch size", openai("Input batch is too large: 5000 requests exceed the maximum of 2048 inputs.")),
    Other(
        "openai's output cap",
        openai(
            "max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided"
            " 32000.",
            param="max_tokens",
        ),
    ),
    Other(
        "openai's output cap without its name",
        openai("This model supports at most 4096 completion tokens, whereas you provided 8000."),
    ),
    Other(
        "anthropic's output cap",
        openai(
            "max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens"
            " for claude-3-5-sonnet-20241022"
        ),
    ),
    Other("anthropic's bytes", openai("Request exceeds the maximum size"), status=413),
    Other("anthropic's marks", openai("A maximum of 4 blocks with cache_control may be provided. Found 5.")),
    Other("anthropic's cache", openai("The prompt is too short to cache: the minimum number of tokens is 1024")),
    Other(
        "cohere's output cap",
        {
            "error_type": "TOO_MANY_TOKENS",
            "message": "too many tokens: max tokens must be less than or equal to 4096, the"
            " maximum output length for this model - received 1000000.",
        },
    ),
    Other(
        "cohere's chunks",
        {
            "message": "invalid request: number of total max chunks (number of documents * max chunks per"
            " doc) must be less than 10000"
        },
    ),
    Other(
        "groq's output cap",
        openai(
            "`max_completion_tokens` must be less than or equal to `32768`, the maximum value for"
            " `max_completion_tokens` is less than the `context_window` for this model"
        ),
    ),
    Other("deepseek's output cap", openai("Invalid max_tokens value, the valid range of max_tokens is [1, 8192]")),
    Other(
        "zhipu, rate",
        {
            "error": {
                "code": "1302",
                "message": "\u60a8\u7684\u8d26\u6237\u5df2\u8fbe\u5230\u901f\u7387"
                "\u9650\u5236\uff0ctoken \u8d85\u8fc7\u9650\u5236",
            }
        },
    ),
    Other(
        "zhipu, output",
        {
            "error": {
                "code": "1210",
                "message": "max_tokens \u8f93\u51fa\u957f\u5ea6\u8d85\u8fc7\u6700\u5927\u9650\u5236 8192",
            }
        },
    ),
    Other(
        "zhipu, parameters",
        {
            "error": {
                "code": "1210",
                "message": "API \u8c03\u7528\u53c2\u6570\u6709\u8bef\uff0c\u8bf7\u68c0\u67e5\u6587\u6863\u3002",
            }
        },
    ),
    Other(
        "a chinese gateway's characters", openai("\u8f93\u5165\u5185\u5bb9\u8d85\u8fc7 20000 \u5b57\u7b26\u9650\u5236")
    ),
    Other(
        "qianfan's characters",
        {"error": {"code": "characters_too_long", "message": "the max input characters is 24000"}},
    ),
    Other("moonshot's bytes", openai("Invalid request: total message size 4400000 exceeds limit 4194304")),
    Other("a picture", openai("Image dimensions exceed max allowed size for many-image requests: 2000 pixels")),
    Other(
        "too many tools",
        openai(
            "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an"
            " array with length 130 instead.",
            code="array_above_max_length",
        ),
    ),
    Other("a window too small", openai("Model context window too small (minimum is 16000 tokens)")),
    Other("a sequence of stops", openai("Too many stop sequences: the request has 17, the maximum is 16.")),
]


def _more(overflow: bool) -> list[dict[str, Any]]:
    lines = Path(__file__).with_suffix(".jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row.pop("overflow") is overflow]


MORE_OVERFLOWS = [Refused(**row) for row in _more(True)]
"""In the words of more providers, servers and gateways; status 200: the first frame of a stream."""
MORE_NEGATIVES = [Other(**row) for row in _more(False)]
"""Limits of rate, credit, output, items, media and parameters, and what a schema does not allow."""
