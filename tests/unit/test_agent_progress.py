"""State of an agent's work: its plan, what failed last and its files stay though their messages are summarised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from app.compaction.agent_progress import (
    LONGEST_COMMAND,
    OPENING,
    ToolEffect,
    agent_progress,
    completed_calls,
    effect_of,
    reports_error,
    reports_failure,
)
from app.compaction.recall import Recollection, with_recalled
from app.compaction.verify import problems
from app.compaction.view import Conversation, Note, Pruned, Summary, Verbatim, View
from app.conversation.authored_text import result_confidence
from app.conversation.messages import History, Message, ToolCall
from tests.unit.conversations import budget, chunk, conversation, cost, message

LIMIT = 4_000
TODOS: Any = {
    "todos": [{"content": "Mend the parser", "status": "in_progress"}, {"content": "Say so", "status": "pending"}]
}
BOXES = "- [x] Mend the parser\n- [ ] Say so"


def step(tool: str, text: str = "ok", **arguments: Any) -> list[Message]:
    """A call and its result."""
    name = f"c{tool}{json.dumps(arguments)}{text}"
    call = ToolCall(name, tool, json.dumps(arguments))
    made = replace(message("assistant"), calls=(call,), digest=message("assistant", name).digest)
    return [made, message("tool", text, answers=name)]


def lines(*steps: Sequence[Message], covered: int | None = None) -> list[str]:
    """Entries about a question and then these."""
    messages = History([message("user", "Mend it."), *(each for said in steps for each in said)])
    return [*agent_progress(messages, len(messages) if covered is None else covered, 1_000)]


PLANS: dict[str, tuple[list[Message], str]] = {
    "Claude Code": (step("TodoWrite", **TODOS), json.dumps(TODOS)),
    "Codex": (
        step("update_plan", plan=[{"step": "a", "status": "pending"}]),
        '{"plan": [{"step": "a", "status": "pending"}]}',
    ),
    "a checklist": (step("update_todo_list", todos=BOXES), json.dumps({"todos": BOXES})),
    "a checklist in a file": (
        step("Write", file_path="a.md", content=f"# Plan\n{BOXES}\n"),
        "- [x] Mend the parser\n\t- [ ] Say so",
    ),
    "a checklist in a text": ([message("assistant", f"So:\n{BOXES}\nGo on.")], "- [x] Mend the parser\n\t- [ ] Say so"),
}


@pytest.mark.parametrize(("said", "plan"), PLANS.values(), ids=PLANS)
def test_the_last_plan_stays_as_it_was_written(said: list[Message], plan: str) -> None:
    older = step("TodoWrite", todos=["Something else"])
    assert lines(older, said)[0] == f"plan in message 4: {plan}"


def test_a_plan_that_was_emptied_is_none() -> None:
    plan, emptied = step("TodoWrite", **TODOS), step("TodoWrite", todos=[])
    assert lines(plan, emptied) == []
    assert lines(emptied, plan)[0].startswith("plan in message")


NO_PLANS = {
    "of orders": step("update_orders", orders=[{"status": "sent"}]),
    "that plans a way": step("plan_route", start="here"),
    "that is no object": [replace(step("plan")[0], calls=(ToolCall("c", "plan", "walk"),))],
    "of a single box": [message("assistant", "- [ ] one")],
    "that is sealed": [replace(message("assistant", BOXES), sealed=True)],
}


@pytest.mark.parametrize("said", NO_PLANS.values(), ids=NO_PLANS)
def test_no_plan_is_a_list_or_a_call(said: list[Message]) -> None:
    assert lines(said) == []


def test_the_last_command_that_failed_is_said_with_what_it_said() -> None:
    first, last = (step("bash", f"Exit code: 1\n{text}", command=text) for text in ("make", "pytest"))
    passed = step("bash", command="ls")
    assert lines(first, last, passed)[0] == "command failed in message 5: $ pytest\n\tExit code: 1\n\tpytest"
    again = step("bash", "fine", command="pytest")
    assert lines(first, last, again)[0].startswith("command failed in message 3: $ make"), "it passed later"


def test_a_failure_counts_that_says_something_whatever_its_status() -> None:
    trace = (
        "<returncode>0</returncode>\n<output>\nTraceback (most recent call last):\n  File\nValueError: no\n</output>"
    )
    caught = step("bash", trace, command="python a.py")
    silent = step("bash", "<returncode>1</returncode>\n<output>\n</output>", command="grep b a.py")
    for found in (lines(caught, silent), lines(step("bash", "exit code 2\nerror: x", command="make"), caught)):
        assert "$ python a.py\n" in found[0]
        assert "ValueError: no" in found[0]
    assert lines(silent) == []


def parallel(*done: tuple[str, dict[str, Any], str], failed: tuple[int, ...] = ()) -> list[Message]:
    """Calls of one message, with their results in one message."""
    calls = tuple(ToolCall(f"p{n}", tool, json.dumps(arguments)) for n, (tool, arguments, _) in enumerate(done))
    texts = tuple(text for *_, text in done)
    results = replace(
        message("tool", "".join(texts)),
        texts=texts,
        answers=tuple(call.id for call in calls),
        owners=tuple(range(len(done))),
        failed=failed,
    )
    return [replace(message("assistant"), calls=calls), results]


def test_of_calls_side_by_side_each_is_said_with_its_own_result() -> None:
    tests = parallel(
        ("bash", {"command": "pytest a"}, "Exit code: 0\nall passed"),
        ("bash", {"command": "pytest b"}, "Exit code: 1\nb failed"),
    )
    assert lines(tests)[0] == "command failed in message 3: $ pytest b\n\tExit code: 1\n\tb failed"
    edits = parallel(("Edit", {"file_path": "a.py"}, "Error: no"), ("Edit", {"file_path": "b.py"}, "done"))
    assert [line.partition(":")[0] for line in lines(edits)] == ["file b.py"]
    marked = parallel(("Edit", {"file_path": "a.py"}, "done"), ("Edit", {"file_path": "b.py"}, "no"), failed=(1,))
    assert [line.partition(":")[0] for line in lines(marked)] == ["file a.py"]


@pytest.mark.parametrize("said", ["The user doesn't want to proceed with this tool use.", "patch rejected by user"])
def test_what_the_user_rejected_is_not_told_as_done(said: str) -> None:
    assert lines(step("Edit", said, file_path="a.py"), step("Read", said, file_path="b.py")) == []
    (entry,) = lines(step("bash", said, command="rm -rf build"))
    assert entry == f"command failed in message 3: $ rm -rf build\n\t{said}"


def test_what_a_file_says_of_exits_is_no_failure_of_an_edit() -> None:
    assert lines(step("Edit", "done:\n7: exit code 1 means that it failed", file_path="a.py")) != []


def test_of_a_long_failure_the_end_stays_whatever_it_looks_like() -> None:
    code = "\n".join(f"def test_{name}():\n    assert {name}" for name in range(100))
    failed = "\n".join(f"FAILED test_a.py::test_the_parcels_of_depot_{n}" for n in range(20))
    ended = f"{failed}\nFAILED test_a.py::test_7\n1 failed in 2.05s"
    said = f"<returncode>1</returncode>\n<output>\n{code}\n{ended}\n</output>"
    (entry,) = lines(step("bash", said, command="pytest"))
    assert "FAILED test_a.py::test_7\n\t1 failed in 2.05s" in entry
    assert len(entry) < 500
    (entry,) = lines(step("bash", f"failed\n{'words ' * 100}", command="make"))
    assert "characters in all, shortened" in entry


def test_a_file_that_was_changed_is_said_with_the_call() -> None:
    read = step("Read", "old", file_path="a.py")
    edit = step("Edit", file_path="a.py", new_string="y")
    call = 'Edit {"file_path": "a.py", "new_string": "y"}'
    for said in ([read, edit], [read, edit, step("Read", "new\nlines", file_path="a.py", offset=9)]):
        assert lines(*said) == [f"file a.py: changed in message 4 by {call}"]
    assert lines(read, step("Read", file_path="b.py")) == ["files read: b.py in message 5, a.py in message 3"]
    assert lines(step("Edit", "Error: no such text", file_path="a.py")) == []


def test_files_that_were_changed_last_come_first() -> None:
    found = lines(step("Write", file_path="c.py", content="w " * 200), step("bash", command="rm a.py b.py"))
    assert found[:2] == [f"file {name}.py: changed in message 4 by $ rm a.py b.py" for name in "ab"]
    assert found[2].startswith("file c.py: changed in message 2 by Write")
    assert found[2].endswith(" ...")


def test_nothing_is_said_of_what_stands_behind_the_summaries() -> None:
    said = [
        step("TodoWrite", **TODOS),
        step("bash", "Exit code: 1\nNo rule", command="make"),
        step("Edit", file_path="a.py"),
        step("Read", "new", file_path="a.py"),
    ]
    assert len(lines(*said)) == 3
    assert lines(*said, covered=1) == []
    assert lines(*said, covered=7) == lines(*said, covered=8) == lines(*said)[:2]


def agent(*steps: Sequence[Message]) -> Conversation:
    said = [each for step_ in steps for each in step_]
    return conversation(message("user", "Mend it."), *said, message("user", "Go on."))


WORK = agent(
    step("TodoWrite", **TODOS),
    step("Edit", file_path="a.py"),
    step("Read", "new", file_path="a.py"),
    *[step("look")] * 3,
)


def recalled(asked: Conversation, limit: int = LIMIT, **changes: Any) -> View:
    view = View((Summary(chunk(asked, 0, 7, **changes)), Verbatim(7, len(asked.transcript))), 100)
    return with_recalled(asked, view, Recollection(asked), budget(limit, recall=0.1), cost)


def notes(view: View) -> list[Note]:
    return [part for part in view.parts if isinstance(part, Note) and part.kind == "state"]


def test_the_state_stands_behind_the_summaries() -> None:
    view = recalled(WORK)
    (note,) = notes(view)
    assert view.parts[1] == note
    assert note.text.startswith(f"{OPENING}\n<work ")
    assert json.dumps(TODOS) in note.text
    assert note in view.recalled
    assert view.actions == ("summarized", "recalled")
    assert problems(WORK, view, LIMIT) == []


STUB = Note("stub", "[6 earlier messages are left out here.]", 10)


def pruned(asked: Conversation, stop: int, *, by: Literal["pruned", "repaired"] = "pruned") -> View:
    """A view without the messages from the second one up to this one, a stub in their place."""
    gone = Pruned(1, stop, by)
    view = View((Verbatim(0, 1), gone, *([STUB] if by == "pruned" else ()), Verbatim(stop, len(asked.transcript))), 100)
    return with_recalled(asked, view, Recollection(asked), budget(LIMIT, recall=0.1), cost)


def test_the_state_stands_behind_the_stub_where_no_summary_was_made() -> None:
    view = pruned(WORK, 7)
    (note,) = notes(view)
    assert view.parts[:4] == (Verbatim(0, 1), Pruned(1, 7), STUB, note)
    assert json.dumps(TODOS) in note.text
    assert problems(WORK, view, LIMIT) == []


def test_what_a_provider_would_refuse_leaves_no_state_in_its_place() -> None:
    assert notes(pruned(WORK, 7, by="repaired")) == []


def test_the_state_stays_whatever_comes_later() -> None:
    later = agent(*[WORK.transcript.messages[1:13]], step("TodoWrite", todos=["New"]), step("Edit", file_path="a.py"))
    assert notes(recalled(later, history_length=9)) == notes(recalled(WORK, history_length=9))
    assert "Mend the parser" not in notes(recalled(later, history_length=15))[0].text


def test_without_room_or_work_there_is_no_state() -> None:
    assert notes(recalled(WORK, 200)) == []
    assert notes(recalled(agent(*[step("look")] * 6))) == []


# Effects of calls on files


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
    "no messages that are thrown away": (shell("echo x 2>/dev/null >& c < b.py"), ()),
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


@pytest.mark.parametrize(
    "text", ["I look.", "That is all.</p>", "```python\nx\n```", "```bash\ncat b.py", "```\n```", "```bash\n```python"]
)
def test_text_without_a_call_does_nothing(text: str) -> None:
    assert list(completed_calls(told(text))) == []
