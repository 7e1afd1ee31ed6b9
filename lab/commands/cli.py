"""Commands of the lab, to which `steno` passes on their arguments.

What a command needs is imported when it runs, so that `steno` need not have all of it.
"""
# ruff: noqa: PLC0415

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.main import get_command

from app.cli.main import LEAST_WINDOW, Upstream, fail, failing_on, keep_quiet

cli = typer.Typer(
    rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False
)

Model = Annotated[str | None, typer.Option(help="The provider's model; needed with --upstream.")]
Written = Literal["messages", "responses", "gemini"]
Presets = Annotated[str | None, typer.Option(help="Replay with these presets: `all`, or names with commas.")]

MODEL_IS_NEEDED = "--upstream needs --model, such as gpt-4o-mini."


def run(context: typer.Context) -> None:
    """Run the command that `steno` was called with, and exit with its status."""
    get_command(cli)([str(context.info_name), *context.args], prog_name=context.find_root().info_name)


def refuse(*problems: tuple[object, str]) -> None:
    """Exit with the message of the first problem that exists."""
    for is_there, message in problems:
        if is_there:
            fail(message)


def _numbers(option: str, written: str, read: Callable[[str], Any], fits: Callable[[Any], bool], what: str) -> Any:
    """Parse the numbers of an option; exit if one does not fit."""
    try:
        numbers = tuple(dict.fromkeys(map(read, written.split(","))))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(fits, numbers)):
        fail(f"{option} is {what}, or several with commas, and not {written!r}.")
    return numbers


@cli.command()
def demo() -> None:
    """Hold a long conversation with and without Steno, against a simulated provider: no key, no network."""
    keep_quiet()
    from app.settings import ConfigurationError
    from lab.commands.demo import hold_conversation

    with failing_on(ConfigurationError):
        sys.exit(hold_conversation())


@cli.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded conversations: JSON or JSON lines.")],
    window: Annotated[str, typer.Option(help="Context window in tokens, or several with commas.")] = "8000",
    written: Annotated[
        Written | None, typer.Option("--as", help="Hold Chat Completions in this format; otherwise as recorded.")
    ] = None,
    chain: Annotated[int, typer.Option(min=1, help="Join so many conversations into one.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay so many conversations of each file.")] = None,
    upstream: Upstream = None,
    model: Model = None,
    presets: Presets = None,
    recall: Annotated[bool, typer.Option("--recall", help="Measure what the files' questions could reach.")] = False,
    recall_ratio: Annotated[
        str | None, typer.Option(help="Measure with these shares of the limit for recalled passages, such as 0,0.05.")
    ] = None,
    questions: Annotated[Path | None, typer.Option(help="Ask these instead of the files' own; for --recall.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay recorded conversations turn by turn and judge what the provider received; exit 1 if anything is lost."""
    keep_quiet()
    least = f"at least {LEAST_WINDOW:,} tokens"
    windows = _numbers("--window", window, int, lambda tokens: tokens >= LEAST_WINDOW, least)
    share = "a share of at least 0 and less than 1"
    ratios = _numbers("--recall-ratio", recall_ratio, float, lambda r: 0 <= r < 1, share) if recall_ratio else ()
    refuse(
        (upstream and not model, MODEL_IS_NEEDED),
        (recall and chain > 1, "--recall needs conversations as they are, without --chain."),
        (questions and not recall, "--questions is for --recall."),
    )
    from app.settings import ConfigurationError
    from lab.commands.replay import Options, measure_recall
    from lab.commands.replay import replay as play
    from lab.replay.recordings import UnreadableRecording

    options = Options(files, windows, presets, ratios, chain, limit, upstream, model, as_json, written)
    with failing_on(UnreadableRecording, ConfigurationError):
        sys.exit(measure_recall(options, questions) if recall else play(options))
