"""Work: what an agent's calls do to files, and whose result a later one makes old.

Clients name their tools as they like, so this is read off the words that nearly all of them use: a verb in the tool's
name, an argument that is a path, a command for a shell. Of a command that much is read: what it prints of one file, and
which files it writes. What is not understood does nothing here: it makes nothing old.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from posixpath import join, normpath
from typing import Any

from msgspec import Struct

from app.core.history.messages import Kind, Message, ToolCall, calls_of
from app.core.wordings import read_wordings

LONGEST_COMMAND = 16_384
"""Characters of a command or a patch that are read."""
LONGEST_MEMBERS = 4_096
"""Characters of a call in tags that are read: its path comes first."""
LONGEST_PATH = 300

_WORDINGS = read_wordings(__package__, "work.toml")

PATHS: Sequence[str] = _WORDINGS["path_arguments"]
"""Names of the argument that says which file."""
COMMANDS: Sequence[str] = _WORDINGS["command_arguments"]
"""Names of the argument that is a command for a shell."""
LINES = re.compile(_WORDINGS["line_arguments"], re.IGNORECASE)
"""Names of arguments that say which part of a file."""
READING = frozenset[str](_WORDINGS["reading"])
"""Words in the name of a tool that returns a file."""
WRITING = frozenset[str](_WORDINGS["writing"])
"""Words in the name of a tool that writes a file as a whole."""
CHANGING = frozenset[str](_WORDINGS["changing"])
"""Words in the name of a tool that changes a part of a file, or takes it away."""
SHELLS = frozenset[str](_WORDINGS["shells"])
"""Languages of a fence that holds a command."""
PRINTERS = frozenset[str](_WORDINGS["printers"])
"""Programs that print a file, or a part of what they are given."""
CHANGERS = frozenset[str](_WORDINGS["changers"])
"""Programs that change the files they are given."""
ERRORS: Sequence[str] = _WORDINGS["errors"]
"""Members of a result in JSON that tell of an error."""

_ERROR_OPENER = re.compile(r"\s*\W?(error|failed|failure|exception|traceback)\b", re.IGNORECASE)
_FAILURE = re.compile(_WORDINGS["failures"], re.IGNORECASE | re.MULTILINE | re.VERBOSE)
FAILURE_CHARACTERS = 400
"""Characters at the beginning of a result in which clients say that nothing was done."""
_STATUS = re.compile(r"(?:return ?code|exit(?:ed)?(?: with)?(?: code| status)?)\W{1,4}(-?\d+)", re.IGNORECASE)
_STATUS_CHARACTERS = 200
"""Characters at the beginning and at the end of a result in which its exit status stands."""
_WORDS = re.compile(r"\w+")
_NAME_WORDS = re.compile(r"[A-Z]?[a-z]+")
_PATCHED = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File:|\+\+\+(?: b/)?)[ \t]*(\S+)", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```(\w*)[ \t]*$", re.MULTILINE)
_LAST_TAG = re.compile(r"</([a-z]\w*)>(?:\s*</function_calls>)?\s*\Z")
_MEMBER = re.compile(r"<(\w+)(?:(?:=| name=\")(\w+)\"?)?>(.*?)</\1>", re.DOTALL)
_DOCUMENT = re.compile(r"<<-?[ \t]*['\"]?(\w+)['\"]?")
_TOKENS = re.compile(r"""((?:'[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s;&|<>()'"\\])+)|(&&|\|\||>>|>&|[;&|<>\n])""", re.DOTALL)


class Work(Struct, frozen=True):
    """One call, by what it does to files."""

    call: str
    """Calls with the same text here ask for the same."""
    reads: str = ""
    """Path of the file that it returns."""
    part: str = ""
    """Lines of it that are asked for; empty for all."""
    writes: tuple[str, ...] = ()
    """Paths of files that it changes."""
    is_whole: bool = False
    """Whether what it writes is all that is then in the file."""
    runs: bool = False
    """A command for a shell that does not only return a file."""


class Newer(Struct, frozen=True):
    """Later work that makes a result old."""

    message: int
    """Position of the message that holds what is newer."""
    known: int
    """Length of the history that it stands in, with its result."""
    how: str
    """Words for it: read again, run again, returned again, written anew, changed."""

    @property
    def replaces(self) -> bool:
        """Whether all that the older one is needed for stands in the newer one."""
        return self.how != "changed"


class Done(Struct, frozen=True):
    """Work whose result is there."""

    message: int
    """Position of the message that holds the result."""
    caller: int
    """Position of the message that calls for it."""
    work: Work
    said: str
    """Text of the result."""
    has_failed: bool


def newer_in(messages: Sequence[Message]) -> dict[int, Newer]:
    """The first that makes a result old, by the position of its message; of several results the last of theirs.

    It follows from the messages before `known` alone.
    """
    found: dict[int, Newer] = {}
    latest: dict[tuple[str, ...], Newer] = {}
    for index, of_message in groupby([*done_in(messages)][::-1], key=_by_message):
        done = [*of_message][::-1]
        newer = [
            min((latest[key] for key in _keys(each) if key in latest), key=_by_place, default=None) for each in done
        ]
        if len(all_newer := [each for each in newer if each]) == len(newer):
            found[index] = max(all_newer, key=_by_place)
        for each in done:
            latest |= _makes_old(each)
    return found


def _by_message(done: Done) -> int:
    return done.message


def _by_place(newer: Newer) -> int:
    return newer.known


def _keys(done: Done) -> Iterator[tuple[str, ...]]:
    """Keys of `_makes_old` that make a result of this work old."""
    work = done.work
    if work.reads:
        yield from (("read", work.reads, part) for part in {work.part, ""})
        yield "write", work.reads
    elif work.runs:
        yield "run", work.call
    else:
        yield "same", work.call, done.said


def _makes_old(done: Done) -> dict[tuple[str, ...], Newer]:
    """The earlier results that are old once this work is done, by key. What failed makes none old, but for a command
    that was run."""
    work, index = done.work, done.message
    made: dict[tuple[str, ...], Newer] = {}
    if work.runs and not _does_nothing(done.said):
        made["run", work.call] = Newer(index, index + 1, "run again")
    elif work.reads and not done.has_failed:
        made["read", work.reads, work.part] = Newer(index, index + 1, "read again")
    elif not (work.runs or work.writes or work.reads):
        made["same", work.call, done.said] = Newer(index, index + 1, "returned again")
    if work.writes and not done.has_failed:
        how = "written anew" if work.is_whole else "changed"
        made |= {("write", path): Newer(done.caller, index + 1, how) for path in work.writes}
    return made


def done_in(messages: Sequence[Message]) -> Iterator[Done]:
    """Work whose result is there, in the order of the results."""
    spoken = 0
    for index, message in enumerate(messages):
        if message.kind is Kind.ASSISTANT:
            spoken = index
        elif message.is_result_text:
            for work in _told(messages[spoken].text):
                yield _done(index, spoken, work, message.text, has_failed=False)
        else:
            for result, caller, call in zip(message.results, message.callers, calls_of(messages, index), strict=False):
                if caller and call:
                    at = index - caller.distance
                    yield _done(index, at, work_of(call), result.text, has_failed=result.has_failed)


def _done(index: int, caller: int, work: Work, said: str, *, has_failed: bool) -> Done:
    return Done(index, caller, work, said, has_failed or (fails(said) if work.runs else tells_of_error(said)))


def tells_of_error(text: str) -> bool:
    """Whether a result tells of an error, or that nothing was done. Not every format has a mark for it: it shows in how
    the result begins, or in a member of its JSON."""
    if _ERROR_OPENER.match(text) or _does_nothing(text):
        return True
    try:
        content = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and any(map(content.get, ERRORS))


def _does_nothing(said: str) -> bool:
    """Whether a result says that its call was rejected, or could not be made."""
    return _FAILURE.search(said[:FAILURE_CHARACTERS]) is not None


def fails(text: str) -> bool:
    """Whether a result tells of an error, or of an exit status other than 0."""
    status = _STATUS.search(text[:_STATUS_CHARACTERS]) or _STATUS.search(text[-_STATUS_CHARACTERS:])
    return int(status[1]) != 0 if status else tells_of_error(text)


def work_of(call: ToolCall) -> Work:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = None
    return _work_of(call.name, arguments if isinstance(arguments, dict) else {"": call.arguments})


def _told(text: str) -> Iterator[Work]:
    """The call that an assistant's text ends with; nothing where it is not understood."""
    text = text[-LONGEST_COMMAND:]
    if command := _fenced(text):
        yield _of_command(command)
    elif (last := _LAST_TAG.search(text)) and (start := text.rfind(f"<{last[1]}", 0, last.start())) >= 0:
        head, _, rest = text[start : last.start()].partition(">")
        # `<read_file>`, `<function=bash>` or `<invoke name="bash">`.
        tool = _WORDS.findall(head)[-1]
        members = _MEMBER.findall(rest[:LONGEST_MEMBERS])
        yield _work_of(tool, {named or name: value.strip() for name, named, value in members})


def _fenced(text: str) -> str:
    """The last command in a fence of its own; empty without one."""
    command, begun = "", None
    for fence in _FENCE.finditer(text):
        if begun is None:
            begun = fence
        elif not fence[1]:
            command = text[begun.end() : fence.start()] if begun[1] in SHELLS else command
            begun = None
    return command.strip()


def _work_of(tool: str, arguments: Mapping[str, Any]) -> Work:
    path = next((_path(arguments[name]) for name in PATHS if isinstance(arguments.get(name), str)), "")
    command = next((arguments[name] for name in COMMANDS if arguments.get(name)), None)
    if command is not None and not path:
        if isinstance(command, list) and command:
            command = command[-1]
        return _of_command(str(command))
    # One tool of several actions: `{"command": "view", "path": ...}`.
    words = words_of_name(command if isinstance(command, str) else tool)
    same = f"{tool} {json.dumps(arguments, sort_keys=True, default=str)}"
    if words & (WRITING | CHANGING):
        texts = (value[:LONGEST_COMMAND] for value in arguments.values() if isinstance(value, str))
        paths = (path,) if path else tuple(_path(found) for text in texts for found in _PATCHED.findall(text))
        return Work(same, writes=paths, is_whole=not words & CHANGING)
    if path and words & READING:
        part = {name: value for name, value in arguments.items() if value and LINES.search(name)}
        return Work(same, reads=path, part=json.dumps(part, sort_keys=True, default=str) if part else "")
    return Work(same)


def words_of_name(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _NAME_WORDS.findall(name))


def _path(written: str) -> str:
    return normpath(written.removeprefix("file://").strip()[:LONGEST_PATH])


def _of_command(command: str) -> Work:
    command = command.strip()
    same = f"$ {command}"
    if len(command) > LONGEST_COMMAND:
        return Work(same, runs=True)
    steps = _steps(_without_documents(command.replace("\\\n", " ")))
    folder = ""
    if steps and steps[0].words[:1] == ["cd"] and len(steps[0].words) == 2 and not steps[0].pipes:
        folder = steps[0].words[1]
        steps = steps[1:]
    if (printed := _printed(steps)) is not None:
        return Work(same, reads=_path(join(folder, printed[0])), part=printed[1])
    whole = [step.into for step in steps if step.into and not step.appends]
    changed = [path for step in steps for path in _changed(step)] + [*_PATCHED.findall(command)]
    writes = tuple(dict.fromkeys(_path(join(folder, path)) for path in (*whole, *changed)))
    return Work(same, writes=writes, is_whole=not changed, runs=True)


def _without_documents(command: str) -> str:
    """A command without the texts that it brings along, each up to the line that ends it."""
    kept, end = list[str](), ""
    for line in command.split("\n"):
        if end:
            end = "" if line.strip() == end else end
            continue
        if begun := _DOCUMENT.search(line):
            end = begun[1]
        kept.append(_DOCUMENT.sub("", line))
    return "\n".join(kept)


class _Step(Struct):
    """One of the commands that a command consists of."""

    words: list[str]
    into: str = ""
    """File that it writes its output into."""
    appends: bool = False
    pipes: bool = False
    """Whether the next one reads what it writes."""


def _steps(command: str) -> list[_Step]:
    steps = [_Step([])]
    redirects = ""
    for word, operator in _TOKENS.findall(command):
        if operator:
            redirects = operator if operator in (">", ">>", "<", ">&") else ""
            if not redirects and steps[-1].words:
                steps[-1].pipes = operator == "|"
                steps.append(_Step([]))
        elif redirects in (">", ">>") and not word.startswith(("/dev/", "&")):
            steps[-1].into, steps[-1].appends = word.strip("'\""), redirects == ">>"
            redirects = ""
        elif not redirects:
            steps[-1].words.append(word.strip("'\""))
        else:
            redirects = ""
    return [step for step in steps if step.words]


def _printed(steps: Sequence[_Step]) -> tuple[str, str] | None:
    """Path of the file that these do nothing but print, and which part of it; None if they do something else."""
    if not steps or any(step.into or step.words[0] not in PRINTERS for step in steps):
        return None
    if any(step.pipes != (step is not steps[-1]) for step in steps) or any(map(_is_in_place, steps)):
        return None
    paths: list[str] = []
    parts: list[str] = []
    for step in steps:
        name, *words = step.words
        if name == "sed":
            words = [word for word in words if word != "-n"]
            parts += words[:1]
            words = words[1:]
        elif name in ("head", "tail"):
            parts.append(f"{name} {' '.join(word for word in words if word.lstrip('-+nc').isdigit())}")
        paths += [word for word in words if not word.startswith("-") and not word.lstrip("+").isdigit()]
    # Numbering lines (`nl -b a`) takes a word that is no path.
    return (paths[0], " ".join(parts)) if len(paths) == 1 else None


def _is_in_place(step: _Step) -> bool:
    return step.words[0] in ("sed", "perl") and any(re.match(r"-[A-Za-z]*i|--in-place", word) for word in step.words)


def _changed(step: _Step) -> list[str]:
    """Paths of the files that one command changes."""
    name, *words = step.words
    paths = [word for word in words if not word.startswith("-")]
    if step.into and step.appends:
        return [step.into]
    if _is_in_place(step):
        return paths[1:]
    if name in CHANGERS:
        return paths
    if name == "git" and words[:1] in (["checkout"], ["restore"]):
        return paths[1:]
    return []
