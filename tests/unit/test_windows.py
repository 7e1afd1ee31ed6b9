"""Context windows: settings first, then what is known of OpenAI's families, then a flagged guess."""

import pytest

from app.settings import ModelSettings
from app.windows import DEFAULT, window_of


@pytest.mark.parametrize(
    ("model", "context"),
    [
        ("gpt-4", 8_192),
        ("gpt-4-0613", 8_192),
        ("gpt-4-32k", 32_768),
        ("gpt-4-turbo-2024-04-09", 128_000),
        ("gpt-4-1106-preview", 128_000),
        ("gpt-4o-mini", 128_000),
        ("openai/gpt-4.1-nano", 1_047_576),
        ("gpt-5-mini", 400_000),
        ("gpt-5-chat-latest", 128_000),
        ("gpt-3.5-turbo", 16_385),
        ("o1-mini", 128_000),
        ("o3", 200_000),
    ],
)
def test_openais_families_are_known(model: str, context: int) -> None:
    window = window_of(model, ())
    assert (window.context, window.source) == (context, "bundled")


def test_a_setting_comes_first_and_the_first_of_them_decides() -> None:
    configured = (
        ModelSettings(match="gpt-4o", context_window=8_000),
        ModelSettings(match="gpt-4*", context_window=9_000),
    )
    window = window_of("openai/gpt-4o", configured)
    assert (window.context, window.source) == (8_000, "config")
    assert window_of("gpt-4.1", configured).context == 9_000
    assert window_of("gpt-5", configured).source == "bundled"


def test_a_setting_may_name_the_model_with_its_vendor() -> None:
    assert window_of("meta/llama", (ModelSettings(match="meta/*", context_window=5_000),)).context == 5_000


def test_an_unknown_model_gets_a_guess_that_is_flagged() -> None:
    assert window_of("my-model", ()) == DEFAULT
    assert DEFAULT.source == "default"
