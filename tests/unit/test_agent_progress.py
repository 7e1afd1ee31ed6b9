"""State of an agent's work: its plan, what failed last and its files stay though their messages are summarised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from app.compaction.agent_progress import OPENING, agent_progress
from app.compaction.recall import RecallPolicy, Recollection, with_recalled
from app.compaction.verify import problems
from app.compaction.view import Conversation, Note, Pruned, Summary, Verbatim, View
from app.conversation.messages import History, Message, ToolCall
from tests.unit.conversations import budget, chunk, conversation, cost, message

LIMIT = 4_000
ROOMY = RecallPolicy(max_ratio=0.1)
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


def lines(*steps: Sequence[Message], covered: int | None = None, plan: int = 1_000) -> list[str]:
    """Entries about a question and then these."""
    messages = History([message("user", "Mend it."), *(each for said in steps for each in said)])
    return [whole for _, whole in agent_progress(messages, len(messages) if covered is None else covered, plan)]


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


CANCELLED = [
    step("TodoWrite", todos=[]),
    *(
        [message("user", said)]
        for said in (
            "Forget that plan, we do the parser first.",
            "Please scrap all of the old plan.",
            "The plan is off.",
            "Vergiss den Plan.",
            "Olvida el plan.",
            "Oublie ce plan.",
            "取消这个计划。",
            "その計画は忘れてください。",
        )
    ),
]


@pytest.mark.parametrize("said", CANCELLED)
def test_a_plan_that_was_cancelled_or_emptied_is_none(said: list[Message]) -> None:
    plan = step("TodoWrite", **TODOS)
    assert lines(plan, said) == []
    assert lines(said, plan)[0].startswith("plan in message")


@pytest.mark.parametrize(
    "said",
    [
        "Don't forget the plan.",
        "Ignore the failing test and go on with the plan.",
        "Vergiss den Plan nicht!",
        "N'oublie pas le plan.",
        "```\nforget that plan\n```",
        "<document>\nForget that plan.\n</document>",
    ],
)
def test_a_plan_holds_where_the_user_did_not_cancel_it(said: str) -> None:
    assert lines(step("TodoWrite", **TODOS), [message("user", said)])[0].startswith("plan in message")


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


def test_a_plan_that_is_too_long_is_shortened() -> None:
    (plan,) = lines(step("TodoWrite", todos=["x" * 500]), plan=100)
    assert "characters in all, shortened" in plan
    assert len(plan) < 200


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
    reads = parallel(("Read", {"file_path": "a.py"}, "a = 1"), ("Read", {"file_path": "b.py"}, "b = 2"))
    written = step("Edit", file_path="b.py")
    assert lines(written, reads)[0].endswith("read in message 5\n\tb = 2")


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


def test_a_file_that_was_changed_is_said_with_what_was_seen_of_it_since() -> None:
    read = step("Read", "old", file_path="a.py")
    edit = step("Edit", file_path="a.py", new_string="y")
    call = 'Edit {"file_path": "a.py", "new_string": "y"}'
    assert lines(read, edit) == [f"file a.py: changed in message 4 by {call}"]
    seen = step("Read", "new\nlines", file_path="a.py", offset=9)
    assert lines(read, edit, seen) == [f"file a.py: changed in message 4 by {call}, read in message 7\n\tnew\n\tlines"]
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
    assert lines(*said, covered=7) == lines(*said)[:2]


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
    return with_recalled(asked, view, Recollection(asked), ROOMY, budget(limit), cost)


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
    return with_recalled(asked, view, Recollection(asked), ROOMY, budget(LIMIT), cost)


def test_the_state_stands_behind_the_stub_where_no_summary_was_made() -> None:
    view = pruned(WORK, 7)
    (note,) = notes(view)
    assert view.parts[:4] == (Verbatim(0, 1), Pruned(1, 7), STUB, note)
    assert json.dumps(TODOS) in note.text
    assert problems(WORK, view, LIMIT) == []


def test_the_state_stays_while_the_same_is_pruned() -> None:
    later = agent(*[WORK.transcript.messages[1:13]], step("TodoWrite", todos=["New"]), step("Edit", file_path="a.py"))
    assert notes(pruned(later, 7)) == notes(pruned(WORK, 7))
    assert "New" in notes(pruned(later, 15))[0].text


def test_what_a_provider_would_refuse_leaves_no_state_in_its_place() -> None:
    assert notes(pruned(WORK, 7, by="repaired")) == []


def test_a_plan_is_as_long_as_its_room_allows() -> None:
    text = "".join(f"{number:04}" for number in range(200))
    view = recalled(agent(step("TodoWrite", todos=[text]), *[step("look")] * 3))
    assert text in notes(view)[0].text


def test_the_state_stays_whatever_comes_later() -> None:
    later = agent(*[WORK.transcript.messages[1:13]], step("TodoWrite", todos=["New"]), step("Edit", file_path="a.py"))
    assert notes(recalled(later, history_length=9)) == notes(recalled(WORK, history_length=9))
    assert "Mend the parser" not in notes(recalled(later, history_length=15))[0].text


def test_the_state_is_worked_out_once_for_a_summary() -> None:
    recollection = Recollection(WORK)
    view = View((Summary(chunk(WORK, 0, 7)), Verbatim(7, len(WORK.transcript))), 100)
    first, again = (with_recalled(WORK, view, recollection, ROOMY, budget(LIMIT), cost) for _ in range(2))
    assert notes(first)[0] is notes(again)[0]


def test_with_little_room_every_line_comes_before_what_was_seen_of_any() -> None:
    many = agent(
        *(each for name in "abc" for each in (step("Edit", file_path=name), step("Read", "w " * 60, file_path=name)))
    )
    view = View((Summary(chunk(many, 0, 13)), Verbatim(13, 14)), 100)
    found = with_recalled(many, view, Recollection(many), ROOMY, budget(2_600), cost)
    (note,) = notes(found)
    assert [f"file {name}" in note.text for name in "abc"] == [True] * 3
    assert 0 < note.text.count("\t") < 3


def test_without_room_or_work_there_is_no_state() -> None:
    assert notes(recalled(WORK, 200)) == []
    assert notes(recalled(agent(*[step("look")] * 6))) == []
