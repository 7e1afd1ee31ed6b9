"""Work: what calls do to files, in the words of several clients, and which of them failed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from app.compaction.agent_progress import (
    LONGEST_COMMAND,
    ToolEffect,
    completed_calls,
    effect_of,
    reports_error,
    reports_failure,
)
from app.conversation.authored_text import result_confidence
from app.conversation.messages import History, ToolCall
from tests.unit.conversations import message


def done(tool: str, **arguments: Any) -> ToolEffect:
    return effect_of(tool, arguments)


def shell(command: str) -> ToolEffect:
    return done("bash", command=command)


READS: dict[str, tuple[ToolEffect, str]] = {
    "Claude Code": (done("Read", file_path="/a/b.py"), "/a/b.py"),
    "some lines": (done("Read", file_path="b.py", offset=9, limit=5), "b.py"),
    "words beside it": (done("read_file", target_file="./b.py", explanation="I look."), "b.py"),
    "a tool of several actions": (
        done("str_replace_based_edit_tool", command="view", path="b.py", view_range=[1, 9]),
        "b.py",
    ),
    "cat": (shell("cat b.py"), "b.py"),
    "with line numbers": (shell("nl -ba b.py"), "b.py"),
    "behind a change of folder": (shell("cd /repo && cat -n src/b.py"), "/repo/src/b.py"),
    "lines of it": (shell("sed -n '1,40p' b.py"), "b.py"),
    "lines of it, numbered": (shell("nl -ba b.py | sed -n '1,40p'"), "b.py"),
    "lines of it, in another folder": (shell("cd a && nl -ba b.py | sed -n '1,40p'"), "a/b.py"),
    "its beginning": (shell("head -n 20 b.py"), "b.py"),
}


@pytest.mark.parametrize(("work", "path"), READS.values(), ids=READS)
def test_read_is(work: ToolEffect, path: str) -> None:
    assert work.reads == path
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
def test_a_result_tells_what_was_rejected_or_could_not_be_done(said: str) -> None:
    assert reports_error(said)


def test_each_result_of_a_message_is_its_own_calls() -> None:
    edits = [ToolCall(f"e{place}", "Edit", json.dumps({"file_path": path})) for place, path in enumerate("ab")]
    reads = history(("Read", {"file_path": "a"}, "1"), ("Read", {"file_path": "b"}, "2"))
    results = replace(
        message("tool", "Error: not found"), texts=("Error: not found", "done"), answers=("e0", "e1"), owners=(0, 1)
    )
    found = completed_calls(History([*reads, replace(message("assistant"), calls=tuple(edits)), results]))
    assert [(call.message, call.caller, call.effect.writes, call.has_failed) for call in found][2:] == [
        (6, 5, ("a",), True),
        (6, 5, ("b",), False),
    ]


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
    assert [(each.message, each.effect.reads) for each in completed_calls(told(call))] == [(2, "b.py")]


def test_a_history_of_results_that_are_told_holds_answers() -> None:
    assert told(FENCE).holds_answers
    assert not told().holds_answers


@pytest.mark.parametrize(
    "text", ["I look.", "That is all.</p>", "```python\nx\n```", "```bash\ncat b.py", "```\n```", "```bash\n```python"]
)
def test_text_without_a_call_does_nothing(text: str) -> None:
    assert list(completed_calls(told(text))) == []
