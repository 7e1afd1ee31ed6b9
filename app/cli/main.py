"""The command line of Steno: `steno --help` lists its commands.

A command's module is imported when the command runs, so that `--help` and `--version` are fast.
"""

from __future__ import annotations

import gc
import os
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

COMMANDS = {
    "serve": ("serve", "Start the proxy."),
    "run": ("run", "Run a command with Steno in front of its provider: steno run -- codex"),
    "doctor": ("doctor", "Check settings, providers, database, tables and windows; exit 1 if something is wrong."),
    "plan": ("doctor", "Print what Steno would do to a request."),
    "models": ("doctor", "List context windows, and where each comes from."),
    "conversations": ("conversations", "List or delete stored conversations."),
    "migrate": ("migrate", "Bring the database to the newest schema."),
    "mcp": ("conversations", "Serve stored conversations to a model over MCP, on standard input and output."),
    "tables": ("migrate", "Fetch the tables that tokens are counted with."),
    "demo": ("run", "Hold a long conversation with and without Steno: no key, no network."),
}
"""Modules and short help texts of the commands."""


class Commands(TyperGroup):
    """Commands whose modules are imported on demand."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click prescribes it
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:  # noqa: ARG002 - likewise
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1]) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        ctx.color = False if are_colors_off() else None
        gc.disable()  # Garbage collection would take an eighth of the import's time, and find nothing.
        module = import_module(f"app.cli.{COMMANDS[str(name)][0]}")
        gc.freeze()
        gc.enable()
        return name, typer.main.get_group(module.cli).commands[str(name)], rest


cli = typer.Typer(
    name="steno",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        from app import __version__  # noqa: PLC0415

        typer.echo(f"Steno {__version__}")
        raise typer.Exit


@cli.callback()
def steno(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A proxy that keeps long conversations inside the model's context window."""


def are_colors_off() -> bool:
    """True if NO_COLOR (https://no-color.org) is set or the terminal has no colours."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def main() -> None:
    cli()


if __name__ == "__main__":
    main()
