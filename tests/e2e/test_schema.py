"""The API as its schema says: whatever is sent, an answer that the schema has, and none of 5xx.

`make schema` asks much more often.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.api.dependencies import methods_of
from app.main import create_app
from app.settings import load
from lab.simulator import Simulator
from tests.e2e import running
from tests.e2e.histories import chat, turns
from tests.e2e.raw import get, post
from tests.e2e.running import Steno

EXAMPLES = 400 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 6
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
APP = create_app(load(storage={"url": "memory"}, secret="a secret for the tests of the schema"))
SCHEMA = schemathesis.openapi.from_dict(APP.openapi())
SCHEMA.config.generation.with_security_parameters = False  # Each test chooses whose key it sends.
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)}
DESTRUCTIVE = {"DELETE /context/conversations/{conversation_id}"}
"""It would leave nothing for the others to find."""
KEYS = [None, "Bearer sk-test", "Bearer sk-other"]
ERASING = {"DELETE /context/tenant": ["Bearer sk-erased"]}
"""Whose data may go."""


@pytest.fixture(scope="module")
def steno() -> Iterator[Steno]:
    with pytest.MonkeyPatch.context() as patch, Simulator().serve() as provider:
        running.forget_environment(patch)
        started = running.start(provider.url, {"summary": {"timeout_seconds": 20}})
        yield started
        started.stop()


@pytest.fixture(scope="module")
def known(steno: Steno) -> Mapping[str, str]:
    """What there is to be found."""
    assert post(steno.url, chat(turns(15), conversation_id="known")).header("x-context-status") == "summarized"
    listed = get(steno.url, "/context/conversations/known/summaries").json
    return {"conversation_id": "known", "summary_id": listed["first_id"]}


def cases() -> Iterator[tuple[str, GenerationMode]]:
    """A path cannot break its schema, which is any text."""
    for label, operation in OPERATIONS.items():
        yield label, GenerationMode.POSITIVE
        if operation.query or operation.body:
            yield label, GenerationMode.NEGATIVE


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # Steno does, in a thread of its own.
@pytest.mark.parametrize(("label", "mode"), list(cases()))
def test_every_answer_is_one_that_the_schema_has(
    steno: Steno, known: Mapping[str, str], label: str, mode: GenerationMode
) -> None:
    operation = OPERATIONS[label]
    named = {name: value for name, value in known.items() if f"{{{name}}}" in label}
    strategies = [operation.as_strategy(mode)]
    if named and label not in DESTRUCTIVE:
        strategies.append(operation.as_strategy(mode, path_parameters=named))

    @seed(12)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=st.one_of(strategies), key=st.sampled_from(ERASING.get(label, KEYS)))
    def ask(case: Any, key: str | None) -> None:
        headers = {} if key is None else {"authorization": key}
        case.call_and_validate(base_url=steno.url, headers=headers, checks=CHECKS)

    ask()


@pytest.mark.parametrize("path", APP.openapi()["paths"])
def test_a_method_that_a_path_has_not_is_refused_with_those_it_has(steno: Steno, path: str) -> None:
    if path.startswith("/v1"):
        return  # Relayed: the provider says.
    target = path.replace("{conversation_id}", "caf%C3%A9%2F7").replace("{summary_id}", "sum_1")
    allowed = methods_of(APP, target)
    assert allowed
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "QUERY"} - set(allowed):
        refused = get(steno.url, target, method=method)
        assert refused.status == 405, method
        assert refused.header("allow") == ", ".join(allowed)
        assert method == "HEAD" or refused.json["error"]["code"] == "method_not_allowed"


def test_head_is_get_without_the_body(steno: Steno, known: Mapping[str, str]) -> None:
    for path in ("/livez", "/readyz", "/openapi.json", f"/context/conversations/{known['conversation_id']}"):
        with_body, without = get(steno.url, path), get(steno.url, path, method="HEAD")
        assert (without.status, without.body) == (200, b"")
        assert without.header("content-length") == with_body.header("content-length") != "0"
    assert get(steno.url, "/context/conversations/none", method="HEAD").status == 404
