"""Claude Code, Codex and Gemini CLI themselves, through Steno and before a strict provider: `make agents`.

Each is driven through a long session in a folder of its own, with instructions in a file and a file to read in every
turn, and Codex calls a tool of Steno's MCP server once. Gemini CLI reads all of its files in one turn, as it repeats
results where it takes a session up again. What the provider saw is judged here: how often it was asked, refused and
asked the same twice, how often the history was compacted, and whether the instructions and what the user just said
stood in every payload. And what the client wrote down: the usage that the provider reported.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import typer

from app.cli.logs import configure_logging
from lab.simulator import Record, ScriptedCall, Simulator
from lab.simulator.replies import default_reply
from tests.e2e.compactions import compactions
from tests.e2e.running import Steno, start

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / ".clients" / "agents" / "node_modules" / ".bin"
RULE = "CANARY-RULE-7731: write British English, and never touch the folder named vendor."
TASK = "TASK-5520"
COMPACTIONS = 5
FILE_WORDS = 4_500
REPLY_SENTENCES = 150
"""What is read can be masked once it is answered. What is said has to be summarised."""
TURN_SECONDS = 600
LISTED = "list_conversations"
"""Tool of the MCP server that Codex calls once."""


@dataclass(frozen=True)
class Agent:
    name: str
    instructions: str
    """The file in its folder that it reads its instructions from."""
    window: int
    """Of the model, in tokens: what the agent sends of its own takes most of a small one."""
    identifiers: int = 1
    """One line in so many of its files has an identifier of its own. What a small window is summarised to has no room
    for more."""
    turns: int = 30
    """Questions at most; a session ends after six compactions."""
    reads: int = 2
    """Files that are read in each turn."""
    least_tools: int = 5
    """A request that declares fewer is not one of the session, but about it: a title, a test of the line."""


CLAUDE = Agent("claude", "CLAUDE.md", 100_000)
CODEX = Agent("codex", "AGENTS.md", 40_000, identifiers=25)
GEMINI = Agent("gemini", "GEMINI.md", 40_000, identifiers=25, turns=1, reads=28)
AGENTS = (CLAUDE, CODEX, GEMINI)


ASKED_BY_USER = re.compile(r'"(?:text|content)": "(?:Your task [^"]*)?QUESTION-([0-9]{3}): read ')


def question(turn: int) -> str:
    task = f"Your task ({TASK}) is to review the files part by part. " if turn == 0 else ""
    return f"{task}QUESTION-{turn:03d}: read the files of part {turn}, and say what stands out."


def write_folder(folder: Path, agent: Agent) -> None:
    (folder / agent.instructions).write_text(f"# House rules\n\n{RULE}\n")
    for turn in range(agent.turns):
        for read in range(agent.reads):
            names = (
                f"Entry{turn}-{read}-{number}" if number % agent.identifiers == 0 else "The one beside it"
                for number in range(FILE_WORDS // 6)
            )
            words = (f"{name} was moved to shelf {number % 97}." for number, name in enumerate(names))
            (folder / f"part{turn}-{read}.txt").write_text("\n".join(words))


def prepare(agent: Agent, home: Path, url: str) -> dict[str, str]:
    """The environment of the agent's commands: its own home, and nothing of this machine's."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", "NO_COLOR": "1"}
    if agent is CLAUDE:
        return variables | {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "sk-test",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
    if agent is GEMINI:
        settings = {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "privacy": {"usageStatisticsEnabled": False},
            "general": {"enableAutoUpdate": False},
        }
        (home / ".gemini").mkdir()
        (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
        trusted = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}
        return variables | {"GOOGLE_GEMINI_BASE_URL": url, "GEMINI_API_KEY": "test"} | trusted
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text(
        f'model = "gpt-5-codex"\nmodel_provider = "steno"\n\n[model_providers.steno]\nname = "Steno"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "OPENAI_API_KEY"\n\n'
        f'[mcp_servers.steno]\nurl = "{url}/mcp"\nbearer_token_env_var = "OPENAI_API_KEY"\n'
    )
    return variables | {"OPENAI_API_KEY": "sk-test"}


def command(agent: Agent, turn: int) -> list[str]:
    program, asked = str(PROGRAMS / agent.name), question(turn)
    if agent is CLAUDE:
        more = ["--continue"] if turn else []
        return [program, "-p", *more, "--model", "claude-sonnet-4-5", "--allowedTools", "Read,Bash", "--", asked]
    if agent is GEMINI:
        return [program, "-p", asked, "--yolo", "--model", "gemini-3.6-flash"]
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return [program, "exec", *flags, *(["resume", "--last"] if turn else []), asked]


# The provider


def declared(record: Record) -> list[Any]:
    payload = record.payload
    tools = payload.get("tools") if isinstance(payload, dict) else None
    listed = tools if isinstance(tools, list) else []
    return [each for tool in listed for each in tool.get("functionDeclarations", [tool])]


def is_session(agent: Agent, record: Record) -> bool:
    return record.kind == "chat" and len(declared(record)) >= agent.least_tools


def history(record: Record) -> list[Any]:
    payload = record.payload
    found = (
        payload.get("messages") or payload.get("input") or payload.get("contents")
        if isinstance(payload, dict)
        else None
    )
    return found if isinstance(found, list) else []


def turn_of(record: Record) -> int | None:
    """The latest turn that its history has the question of, as the user asked it: what is quoted of it is none."""
    asked = map(ASKED_BY_USER.search, map(json.dumps, reversed(history(record))))
    return next((int(found[1]) for found in asked if found), None)


def turn_under_way(record: Record) -> str:
    """All that came since the latest question, as JSON."""
    found = list[str]()
    for message in reversed(history(record)):
        found.append(json.dumps(message))
        if ASKED_BY_USER.search(found[-1]):
            break
    return "".join(found)


def calls_in(record: Record, name: str) -> int:
    """Calls of this function since the latest question."""
    return turn_under_way(record).count(f'"name": "{name}"')


def reads_in(record: Record) -> int:
    """Results of the client's tools since the latest question."""
    written = turn_under_way(record)
    found = written.count('"type": "tool_result"') + written.count('"type": "function_call_output"')
    return found - calls_in(record, LISTED)


CALLS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "Read": lambda path: {"file_path": path},
    "exec_command": lambda path: {"cmd": f"cat {path}", "max_output_tokens": 20_000},
    "shell_command": lambda path: {"command": f"cat {path}"},
    "shell": lambda path: {"command": ["cat", path]},
}
"""How a file is read, by the tools that the agents declare."""


def script(simulator: Simulator, agent: Agent, folder: Path) -> None:
    """Each turn reads its files, one call after the other, and is answered then."""
    if agent is CODEX:
        simulator.when(lists, tool_calls=[ScriptedCall(name=LISTED)])
    if agent is GEMINI:  # Its one turn is summarised meanwhile: results in a prompt do not say how far it is.
        for read in range(agent.reads):
            call = ScriptedCall(name="read_file", arguments=json.dumps({"file_path": f"{folder}/part0-{read}.txt"}))
            simulator.when(partial(is_session, agent), tool_calls=[call], times=1)
        return
    for turn, read, (name, arguments) in product(range(agent.turns), range(agent.reads), CALLS.items()):
        path = str(folder / f"part{turn}-{read}.txt")
        call = ScriptedCall(name=name, arguments=json.dumps(arguments(path)))
        simulator.when(partial(is_due, agent, turn, read, name), tool_calls=[call], thinking="That file next.")


def lists(record: Record) -> bool:
    """Whether the model is to call the MCP server now."""
    return is_session(CODEX, record) and turn_of(record) == 1 and not calls_in(record, LISTED)


def is_due(agent: Agent, turn: int, read: int, tool: str, record: Record) -> bool:
    """Whether the model is to read that file of that turn now, with that tool."""
    if not is_session(agent, record) or turn_of(record) != turn or reads_in(record) != read:
        return False
    return tool in {each.get("name") for each in declared(record)}


def long_reply(messages: list[Any]) -> str:
    said = (
        f"On shelf {number % 97} entry {number} stands where it was, and nobody has asked for it since."
        for number in range(REPLY_SENTENCES)
    )
    return " ".join((default_reply(messages), *said))


# The session


@contextmanager
def before(simulator: Simulator, agent: Agent) -> Iterator[Steno]:
    with simulator.serve() as provider:
        upstream: dict[str, Any] = {"formats": ["chat_completions", "messages", "responses"]}
        if agent is GEMINI:
            upstream = {"formats": ["gemini"], "base_url": provider.url}
        models = [{"match": "*", "context_window": agent.window}]
        steno = start(provider.url, {"upstream": upstream, "models": models})
        try:
            yield steno
        finally:
            steno.stop()


def play(agent: Agent) -> tuple[Simulator, list[str], list[str]]:
    """The provider as it was left, what went wrong at the client, and the lines of its own log."""
    simulator = Simulator(window=agent.window, models="any", reply=long_reply, tables=ROOT / ".tables")
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as place, before(simulator, agent) as steno:
        home, folder = Path(place) / "home", Path(place) / "work"
        home.mkdir()
        folder.mkdir()
        write_folder(folder, agent)
        script(simulator, agent, folder)
        variables = prepare(agent, home, steno.url)
        for turn in range(agent.turns):
            ended = subprocess.run(  # noqa: S603 - what this is for
                command(agent, turn),
                cwd=folder,
                env=variables,
                check=False,
                capture_output=True,
                text=True,
                timeout=TURN_SECONDS,
                stdin=subprocess.DEVNULL,
            )
            if ended.returncode:
                failed.append(f"turn {turn}: exit {ended.returncode}: {(ended.stderr or ended.stdout)[-400:]}")
            if compactions(record for record in simulator.log if is_session(agent, record)) > COMPACTIONS:
                break
        written = [line for path in sorted(home.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    return simulator, failed, written


def used(agent: Agent, written: Sequence[str]) -> int:
    """Tokens of all answers, as the client wrote them down."""
    lines = [json.loads(line) for line in written]
    if agent is CODEX:
        counted = [line["payload"]["info"] for line in lines if line["payload"].get("type") == "token_count"]
        totals = {info["total_token_usage"]["total_tokens"]: info["last_token_usage"] for info in counted if info}
        return sum(usage["total_tokens"] for usage in totals.values())
    if agent is GEMINI:
        said = {line["id"]: line["tokens"] for line in lines if line.get("type") == "gemini" and line.get("tokens")}
        return sum(tokens["total"] for tokens in said.values())
    answers = [line["message"] for line in lines if line.get("type") == "assistant"]
    return sum(map(tokens_of, {answer["id"]: answer["usage"] for answer in answers}.values()))


def tokens_of(usage: Mapping[str, Any]) -> int:
    """Tokens of prompt and answer."""
    if "totalTokenCount" in usage:
        return int(usage["totalTokenCount"])
    cached = ("cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(usage.get(name) or 0 for name in ("input_tokens", "output_tokens", *cached))


def said_again(simulator: Simulator, record: Record) -> str:
    """What the provider says to a request that it refused: the log does not keep it."""
    kept = {"content-type", "authorization", "x-api-key", "anthropic-version", "anthropic-beta"}
    headers = [(name, value) for name, value in record.headers if name.decode("latin-1").lower() in kept]
    with simulator.serve() as provider:
        answered = httpx2.request(record.method, provider.url + record.target, headers=headers, content=record.body)
    return answered.text[:600]


def judge(agent: Agent, simulator: Simulator, failed: Sequence[str], written: Sequence[str]) -> bool:
    """Prints what was seen; whether it is as it has to be."""
    session = [record for record in simulator.log if is_session(agent, record)]
    refused = [record for record in simulator.log if record.status is not None and record.status >= 400]
    doubled = sum(times - 1 for times in Counter(record.body for record in session).values())
    without_rule = [record.sequence for record in session if RULE.encode() not in record.body]
    without_question = [record.sequence for record in session if turn_of(record) is None]
    without_task = [record.sequence for record in session if TASK.encode() not in record.body]
    made = compactions(session)
    billed, told = sum(tokens_of(record.usage or {}) for record in session), used(agent, written)
    listed = [record for record in session if LISTED in turn_under_way(record)]
    typer.echo(f"{agent.name}: {len(session)} requests of the session, {len(simulator.log)} in all")
    typer.echo(f"  refused by the provider   {len(refused)}")
    typer.echo(f"  doubled                   {doubled}")
    typer.echo(f"  compactions               {made}, {len(simulator.summaries)} summary calls")
    typer.echo(f"  without {agent.instructions:<17} {len(without_rule)} {without_rule[:10]}")
    typer.echo(f"  without any question      {len(without_question)} {without_question[:10]}")
    typer.echo(f"  without the task          {len(without_task)} {without_task[:10]}")
    typer.echo(f"  tokens                    {billed} by the provider, {told} as the client was told")
    if agent is CODEX:
        typer.echo(f"  calls of the MCP server   {'answered' if listed else 'none'}")
    for record in refused[:3]:
        typer.echo(f"  refused: request {record.sequence}, {record.status}: {said_again(simulator, record)}")
    for line in failed[:3]:
        typer.echo(f"  failed: {line}")
    wrong = refused or doubled or without_rule or without_question or without_task or failed
    return not wrong and billed == told and (bool(listed) or agent is not CODEX) and made >= COMPACTIONS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", help="claude, codex, gemini; all unless named")
    options = parser.parse_args()
    configure_logging("error", "text", sys.stderr)
    agents = [agent for agent in AGENTS if not options.agents or agent.name in options.agents]
    right = [judge(agent, *play(agent)) for agent in agents]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
