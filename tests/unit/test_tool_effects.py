"""Work: what calls do to files, in the words of several clients, and whose result is old for what was done later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from app.compaction.agent_progress import (
    LONGEST_COMMAND,
    NewerResult,
    ToolEffect,
    effect_of,
    newer_results,
    reports_failure,
)
from app.conversation.authored_text import result_confidence
from app.conversation.messages import History, ToolCall
from tests.unit.conversations import message


def done(tool: str, **arguments: Any) -> ToolEffect:
    return effect_of(tool, arguments)


def shell(command: str) -> ToolEffect:
    return done("bash", command=command)


READS: dict[str, tuple[ToolEffect, tuple[str, str]]] = {
    "Claude Code": (done("Read", file_path="/a/b.py"), ("/a/b.py", "")),
    "some lines": (done("Read", file_path="b.py", offset=9, limit=5), ("b.py", '{"limit": 5, "offset": 9}')),
    "words beside it": (done("read_file", target_file="./b.py", explanation="I look."), ("b.py", "")),
    "a tool of several actions": (
        done("str_replace_based_edit_tool", command="view", path="b.py", view_range=[1, 9]),
        ("b.py", '{"view_range": [1, 9]}'),
    ),
    "cat": (shell("cat b.py"), ("b.py", "")),
    "with line numbers": (shell("nl -ba b.py"), ("b.py", "")),
    "behind a change of folder": (shell("cd /repo && cat -n src/b.py"), ("/repo/src/b.py", "")),
    "lines of it": (shell("sed -n '1,40p' b.py"), ("b.py", "1,40p")),
    "lines of it, numbered": (shell("nl -ba b.py | sed -n '1,40p'"), ("b.py", "1,40p")),
    "lines of it, in another folder": (shell("cd a && nl -ba b.py | sed -n '1,40p'"), ("a/b.py", "1,40p")),
    "its beginning": (shell("head -n 20 b.py"), ("b.py", "head 20")),
}


@pytest.mark.parametrize(("work", "read"), READS.values(), ids=READS)
def test_read_is(work: ToolEffect, read: tuple[str, str]) -> None:
    assert (work.reads, work.part) == read
    assert not work.writes


WRITES: dict[str, tuple[ToolEffect, tuple[str, ...]]] = {
    "Claude Code": (done("Write", file_path="b.py", content="x"), ("b.py",)),
    "a part": (done("Edit", file_path="b.py", old_string="x", new_string="y"), ("b.py",)),
    "a tool of several actions": (done("str_replace_editor", command="create", path="b.py"), ("b.py",)),
    "a patch": (done("apply_patch", input="*** Begin Patch\n*** Update File: b.py\n@@\n"), ("b.py",)),
    "a patch that is no object": (
        effect_of("apply_patch", {"": "*** Update File: b.py\n*** Add File: c.py"}),
        ("b.py", "c.py"),
    ),
    "a document of a shell": (shell("cat <<'EOF' > b.py\ncat z > y\nEOF"), ("b.py",)),
    "one behind its file": (shell("mkdir -p a && cat > a/b.py <<EOF\nx\nEOF"), ("a/b.py",)),
    "behind it": (shell("echo x >> 'b.py'"), ("b.py",)),
    "in place": (shell("sed -i 's/a;b/b/' b.py c.py && pytest"), ("b.py", "c.py")),
    "nothing else": (shell("sed -i 5d b.py"), ("b.py",)),
    "what is taken away": (shell("rm -rf b.py"), ("b.py",)),
    "what is taken back": (shell("cd a; git checkout b.py"), ("a/b.py",)),
    "no messages that are thrown away": (shell("make 2>/dev/null < b.py >& c"), ()),
    "nothing of another": (shell("git status"), ()),
    "nothing where only the folder changes": (shell("cd a"), ()),
    "nothing of one that is no command": (shell(";"), ()),
    "nothing that is only listed": (shell("ls | cat"), ()),
    "nothing in place of two": (shell("cat a.py b.py"), ()),
    "nothing of a command that is too long to be read": (shell(f"rm b.py {'x' * LONGEST_COMMAND}"), ()),
}


@pytest.mark.parametrize(("work", "paths"), WRITES.values(), ids=WRITES)
def test_written_is(work: ToolEffect, paths: tuple[str, ...]) -> None:
    assert work.writes == paths
    assert not work.reads


def test_a_command_may_be_a_list() -> None:
    assert done("shell", command=["bash", "-lc", "rm b.py"]) == shell("rm b.py")


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("<returncode>1</returncode>\n<output>\n</output>", True),
        ("<returncode>0</returncode>\n<output>\nError: x\n</output>", False),
        ("x " * 400 + "\n[The command completed with exit code 2.]", True),
        ("Exit code: 0\nok", False),
        ("Traceback (most recent call last)", True),
        ('{"error": "not found"}', True),
        ("3 passed", False),
    ],
)
def test_a_result_tells_whether_it_failed(text: str, *, failed: bool) -> None:
    assert reports_failure(text) is failed


def history(*steps: tuple[str, dict[str, Any], str]) -> History:
    """A question, then calls with their results: those of call n stand at 2 n + 2."""
    said = [message("user", "Mend it.")]
    for place, (tool, arguments, text) in enumerate(steps):
        call = ToolCall(f"c{place}", tool, json.dumps(arguments))
        said += [replace(message("assistant"), calls=(call,)), message("tool", text, answers=f"c{place}")]
    return History(said)


READ = ("Read", {"file_path": "b.py"}, "x = 1")
LINES = ("Read", {"file_path": "b.py", "offset": 9}, "x = 1")
EDIT = ("Edit", {"file_path": "b.py"}, "done")
NO_EDIT = ("Edit", {"file_path": "b.py"}, "Error: not found")
WRITE = ("Write", {"file_path": "b.py"}, "done")
TEST = ("bash", {"command": "pytest", "description": "Run it"}, "1 failed")
AGAIN = ("bash", {"command": "pytest", "description": "Run it again"}, "1 passed")
SEARCH = ("search", {"query": "x"}, "b.py")
FOUND = ("search", {"query": "x"}, "b.py, c.py")

OLD: dict[str, tuple[History, dict[int, NewerResult]]] = {
    "a file that was read again": (history(READ, TEST, READ), {2: NewerResult(6, 7, "read again")}),
    "by the first of several": (
        history(READ, READ, READ),
        {2: NewerResult(4, 5, "read again"), 4: NewerResult(6, 7, "read again")},
    ),
    "lines of which all was read": (history(LINES, READ), {2: NewerResult(4, 5, "read again")}),
    "not all for some lines": (history(READ, LINES), {}),
    "a command that was run again": (history(TEST, AGAIN), {2: NewerResult(4, 5, "run again")}),
    "a file that was changed": (history(READ, EDIT), {2: NewerResult(3, 5, "changed")}),
    "not by what failed": (history(READ, NO_EDIT), {}),
    "a file that was written as a whole": (history(READ, WRITE), {2: NewerResult(3, 5, "changed")}),
    "the same that came again": (history(SEARCH, SEARCH), {2: NewerResult(4, 5, "returned again")}),
    "not what says something else": (history(SEARCH, FOUND), {}),
    "nothing of what is not called": (
        History([message("tool", "x", answers="c"), message("tool", "x", answers="c")]),
        {},
    ),
}


NOTHING_DONE = [
    "Error: ENOENT: no such file or directory",
    "File does not exist.",
    "<tool_use_error>String to replace not found in file.</tool_use_error>",
    "File content (31,000 tokens) exceeds maximum allowed tokens (25,000).",
    "File unchanged since last read. The content from the earlier Read tool_result is still current.",
    "The user doesn't want to proceed with this tool use. The tool use was rejected.",
    "[Request interrupted by user for tool use]",
    "apply_patch verification failed: Failed to find expected lines in b.py",
    "patch rejected by user",
    "exec command rejected by user",
    'execution error: Io(Os { code: 13, kind: PermissionDenied, message: "Permission denied" })',
    "No replacement was performed, old_str `x` did not appear verbatim in b.py.",
    "oldString not found in content",
    "The user rejected permission to use this specific tool call.",
    "[Operation Cancelled] Reason: the user cancelled",
    "[write_to_file for 'b.py'] Result:\nThe tool execution failed with the following error:",
    "<error_details>\nUnable to apply diff\n</error_details>",
    "The user denied this operation.",
    "Could not find exact match for edit",
    "cat: b.py: Permission denied",
]


@pytest.mark.parametrize("said", NOTHING_DONE)
def test_nothing_is_old_by_what_was_rejected_or_could_not_be_done(said: str) -> None:
    for tool, arguments in (READ[:2], EDIT[:2], WRITE[:2]):
        assert newer_results(history(READ, (tool, arguments, said))) == {}


def test_a_command_that_was_rejected_is_not_run_again() -> None:
    rejected = ("bash", {"command": "pytest"}, "The user doesn't want to proceed with this tool use.")
    assert newer_results(history(TEST, rejected)) == {}


def test_what_the_client_marks_as_failed_makes_nothing_old() -> None:
    messages = history(READ, READ)
    assert newer_results([*messages[:-1], replace(messages[-1], failed=(0,))]) == {}


def test_each_result_of_a_message_is_its_own_calls() -> None:
    edits = [ToolCall(f"e{place}", "Edit", json.dumps({"file_path": path})) for place, path in enumerate("ab")]
    reads = history(("Read", {"file_path": "a"}, "1"), ("Read", {"file_path": "b"}, "2"))
    results = replace(
        message("tool", "Error: not found"), texts=("Error: not found", "done"), answers=("e0", "e1"), owners=(0, 1)
    )
    found = newer_results(History([*reads, replace(message("assistant"), calls=tuple(edits)), results]))
    assert found == {4: NewerResult(5, 7, "changed")}


@pytest.mark.parametrize(("messages", "old"), OLD.values(), ids=OLD)
def test_old_is(messages: History, old: dict[int, NewerResult]) -> None:
    assert newer_results(messages) == old


def test_a_message_of_several_results_is_old_once_all_are() -> None:
    read, *both = history(READ, TEST, AGAIN)[1:]
    calls = (*read.calls, *both[1].calls)
    results = replace(both[0], texts=("x = 1", "1 failed"), answers=("c0", "c1"), owners=(0, 1))
    asked = [message("user", "Mend it."), replace(read, calls=calls), results]
    assert newer_results(History([*asked, *both[3:]])) == {}
    again = history(READ)[1:]
    named = [replace(again[0], calls=(replace(again[0].calls[0], id="n"),)), replace(again[1], answers=("n",))]
    assert newer_results(History([*asked, *both[3:], *named])) == {2: NewerResult(6, 7, "read again")}


def told(*calls: str) -> History:
    said = [message("user", "Mend it.")]
    for call in calls:
        text = "<returncode>0</returncode>\n<output>\nx\n</output>"
        said += [
            message("assistant", call),
            replace(message("user", text), result_confidence=result_confidence([text])),
        ]
    return History(said)


FENCE = "I look.\n```python\nx\n```\nSo:\n```bash\ncat b.py\n```"
CALLS = {
    "a fence": FENCE,
    "tags": "I look.\n<read_file>\n<path>b.py</path>\n</read_file>",
    "a function": (
        "<function=str_replace_editor>\n<parameter=command>view</parameter>\n<parameter=path>b.py</parameter>\n"
        "</function>"
    ),
    "an invocation": (
        '<function_calls>\n<invoke name="Read">\n<parameter name="file_path">b.py</parameter>\n</invoke>\n'
        "</function_calls>"
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_calls_that_are_written_as_text_are_read_alike(call: str) -> None:
    assert newer_results(told(call, FENCE)) == {2: NewerResult(4, 5, "read again")}


def test_a_history_of_results_that_are_told_holds_answers() -> None:
    assert told(FENCE).holds_answers
    assert not told().holds_answers


@pytest.mark.parametrize(
    "text", ["I look.", "That is all.</p>", "```python\nx\n```", "```bash\ncat b.py", "```\n```", "```bash\n```python"]
)
def test_text_without_a_call_makes_nothing_old(text: str) -> None:
    assert newer_results(told(text, text)) == {}


def test_what_is_old_follows_from_what_stands_before_it_is_known() -> None:
    whole = history(READ, TEST, EDIT, AGAIN, READ, LINES, WRITE, SEARCH, SEARCH)
    for length in range(len(whole)):
        known = {index: newer for index, newer in newer_results(whole).items() if newer.known <= length}
        assert newer_results(whole[:length]) == known
