"""A worker's readiness, as its supervisor asks for it."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import uvicorn

from app.cli.serve import Worker

NOTHING: Any = None


@pytest.mark.parametrize("is_ready", [True, False])
def test_an_answer_to_an_earlier_question_does_not_count(is_ready: bool) -> None:
    worker = Worker(uvicorn.Config("app.main:app", log_config=None), NOTHING, NOTHING, None, reports=False)
    worker.child_conn.send(not is_ready)  # As it answers, once it has started, what was asked before.

    def answer() -> None:
        worker.child_conn.recv()
        worker.child_conn.send(is_ready)

    Thread(target=answer, daemon=True).start()
    assert worker.is_ready(timeout=30) is is_ready
