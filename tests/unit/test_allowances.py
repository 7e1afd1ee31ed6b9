"""Allowances: what a tenant may have, and what it is told beyond that."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.tokens.usage import Price, Tariff, Tokens
from app.errors import LimitReached, MoneySpent, NotAllowed
from app.proxy.allowances import MONEY, TOKENS, Allowances, check_body, check_use
from app.proxy.tenants import Known
from app.runtime.bounded import MOST_REMEMBERED
from app.settings import LimitSettings
from app.store import UsageRecord
from app.store.client_keys import KeyLimits
from app.store.tallies import CONVERSATION, FOREVER, MOST_WINDOWS, Tallies, Window
from tests.unit.clock import Clock

PRICES = ((0, Price(2.0, 10.0)),)
NOON = 43_200.0
"""Seconds since 1970, at the beginning of a minute."""


def allowances(clock: Clock, **limits: Any) -> Allowances:
    return Allowances(Tallies(clock), LimitSettings(**limits), lambda asked, _: Tariff(asked, "settings", PRICES))


def known(tenant: str = "a", limits: KeyLimits | None = None) -> Known:
    return Known(tenant, "key" if limits is None else "owner", limits=limits)


def call(tenant: str = "a", **members: Any) -> UsageRecord:
    usual: dict[str, Any] = {
        **dict.fromkeys(("id", "conversation_id", "request_id", "upstream", "model"), "x"),
        "turn": 1,
        "purpose": "message",
        "estimated": 90,
        "forwarded": 80,
        "saved": 10,
        "status": 200,
        "tokens": Tokens(70, 30),
        "price": None,
        "cost": 0.5,
        "context_status": "full",
    }
    return UsageRecord(tenant=tenant, **(usual | members))


def is_refused(allowed: Allowances, tenant: str = "a") -> bool:
    try:
        allowed.admit(known(tenant))
    except LimitReached:
        return True
    return False


def test_a_refusal_says_the_very_second_at_which_the_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the clock here and the database's, by which windows end, are not quite the same."""
    clock = Clock(NOON + 30.2)
    allowed = allowances(clock, requests_per_minute=1)
    allowed.admit(known())
    for apart in (-0.3, 0.0, 0.3):
        monkeypatch.setattr("app.proxy.allowances.time", lambda: clock() + apart)  # noqa: B023 - called at once
        with pytest.raises(LimitReached, match="begins anew at 1970-01-01T12:01:00Z, in 30 s"):
            allowed.admit(known())


def test_so_many_requests_of_a_tenant_are_let_in_within_a_minute() -> None:
    clock = Clock(NOON + 30)
    allowed = allowances(clock, requests_per_minute=2)
    assert [is_refused(allowed) for _ in range(3)] == [False, False, True]
    assert not is_refused(allowed, "b")
    clock.now += 29.9
    assert is_refused(allowed)
    clock.now += 0.1
    assert not is_refused(allowed)


def test_a_refusal_names_the_limit_the_number_and_its_end() -> None:
    allowed = allowances(Clock(NOON + 30), requests_per_minute=1)
    allowed.admit(known())
    with pytest.raises(LimitReached) as refused:
        allowed.admit(known())
    assert "1 requests a minute" in refused.value.message
    assert "limits.requests_per_minute" in refused.value.message
    assert "in 30 s" in refused.value.message
    assert dict(refused.value.headers)[b"retry-after"] == b"30"


def test_tokens_of_prompts_and_answers_count_for_a_day() -> None:
    clock = Clock(NOON)
    allowed = allowances(clock, tokens_per_day=200)
    allowed.spent(call())
    assert not is_refused(allowed)
    allowed.spent(call(purpose="summary"))
    assert is_refused(allowed)
    clock.now += NOON
    assert not is_refused(allowed)


def test_who_spent_his_money_is_told_to_pay_and_no_sdk_tries_again_for_hours() -> None:
    allowed = allowances(Clock(NOON), money_per_day=1)
    allowed.spent(call())
    assert not is_refused(allowed)
    allowed.spent(call())
    with pytest.raises(MoneySpent) as refused:
        allowed.admit(known())
    assert refused.value.status == 402
    assert dict(refused.value.headers)[b"x-should-retry"] == b"false"
    assert dict(refused.value.headers)[b"retry-after"] == b"43200"


def test_a_call_whose_usage_nobody_told_counts_as_its_prompt_was_estimated() -> None:
    tokens = allowances(Clock(NOON), tokens_per_day=80)
    tokens.spent(call(tokens=Tokens(), cost=None, forwarded=None))
    tokens.spent(call(tokens=Tokens(), cost=None, forwarded=79))
    assert not is_refused(tokens)
    tokens.spent(call(tokens=Tokens(), cost=None, forwarded=1))
    assert is_refused(tokens)
    money = allowances(Clock(NOON), money_per_day=2)
    money.spent(call(tokens=Tokens(), cost=None, forwarded=1_000_000))
    assert is_refused(money)


def test_a_call_that_failed_costs_nothing() -> None:
    allowed = allowances(Clock(NOON), tokens_per_day=1, money_per_day=0.01)
    allowed.spent(call(status=500))
    assert not is_refused(allowed)


def test_who_begins_many_conversations_or_is_pushed_out_by_other_tenants_has_used_what_he_used() -> None:
    tallies = Tallies(Clock(NOON))
    tallies.add("a", TOKENS, 70)
    for number in range(3 * MOST_WINDOWS):
        tallies.add("a", Window(f"{CONVERSATION}{number}", FOREVER), 1)
        assert tallies.used("a", TOKENS) == 70
    for number in range(MOST_REMEMBERED):
        tallies.add(f"other {number}", TOKENS, 1)
    assert tallies.used("a", TOKENS) == 70


def test_a_key_has_limits_beside_those_of_all_tenants() -> None:
    allowed = Allowances(Tallies(Clock(NOON)), LimitSettings(), lambda *_: None)
    limited, other = known(limits=KeyLimits(tokens_per_day=100)), known(limits=KeyLimits(tokens_per_day=101))
    allowed.spent(call())
    with pytest.raises(LimitReached, match="this key's tokens_per_day"):
        allowed.admit(limited)
    allowed.admit(other)
    allowed.admit(known())


def test_what_no_conversation_is_known_of_counts_for_the_tenant_alone() -> None:
    tallies = Tallies(Clock(NOON))
    keyring: Any = SimpleNamespace(limits_conversations=True)
    told = Allowances(tallies, LimitSettings(tokens_per_day=100), lambda *_: None, keyring)
    told.spent(call(conversation_id="", cost=1.0))
    assert tallies.used("a", MONEY) == 1.0
    assert tallies.used("a", Window(CONVERSATION, FOREVER)) == 0
    assert is_refused(told)


def test_an_answer_whose_usage_nobody_told_counts_by_its_text() -> None:
    money = allowances(Clock(NOON), money_per_day=2)
    money.wrote("a", "one", "m", 199_999)
    assert not is_refused(money)
    money.wrote("a", "one", "m", 1)
    assert is_refused(money)


def test_a_key_with_a_limit_for_each_conversation_is_for_requests_that_show_one() -> None:
    allowed = allowances(Clock(NOON))
    allowed.admit_apart(known(limits=KeyLimits(money_per_day=1.0)), "m")
    with pytest.raises(NotAllowed):
        allowed.admit_apart(known(limits=KeyLimits(money_per_conversation=1.0)), "m")


OF_MODELS = (KeyLimits(models=("m-*",)), KeyLimits(money_per_day=1.0), KeyLimits(money_per_conversation=1.0))
OTHERS: dict[str, bytes] = {
    "OpenRouter's": b'{"model": "m-1", "models": ["other"]}',
    "OpenRouter's preset": b'{"preset": "other", "model": "m-1"}',
    "LiteLLM's": b'{"model": "m-1", "context_window_fallbacks": [{"m-1": ["other"]}]}',
    "in another case": b'{"model": "m-1", "Model": "other"}',
    "twice": b'{"model": "other", "model": "m-1"}',
    "written otherwise": b'{"model": "m-1", "mod\\u0065l": "other"}',
    "in no JSON": b"model: other",
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_a_key_for_models_or_money_is_for_requests_whose_model_is_certain(body: bytes) -> None:
    for limits in OF_MODELS:
        with pytest.raises(NotAllowed, match="this key is for certain models, or for so much money"):
            check_body(known(limits=limits), body)
        check_body(known(limits=limits), b'{"model": "m-1", "messages": [], "modelled": {"models": 1}}')
    check_body(known(limits=KeyLimits(tokens_per_day=1)), body)
    check_body(known(), body)


def test_a_conversation_goes_on_until_it_cost_what_its_key_allows() -> None:
    tariff = Tariff("m", "settings", PRICES)
    for limits_conversations in (True, False):
        keyring: Any = SimpleNamespace(limits_conversations=limits_conversations)
        allowed = Allowances(Tallies(Clock(NOON)), LimitSettings(), lambda *_: tariff, keyring)
        limited = known(limits=KeyLimits(money_per_conversation=0.5))
        allowed.admit_conversation(limited, "x", ["m"])
        allowed.spent(call())
        allowed.admit_conversation(limited, "another", ["m"])
        with pytest.raises(MoneySpent) if limits_conversations else nullcontext():
            allowed.admit_conversation(limited, "x", ["m"])


def test_who_may_spend_so_much_gets_no_model_whose_price_nobody_knows() -> None:
    allowed = Allowances(Tallies(Clock(NOON)), LimitSettings(), lambda *_: None)
    for limits in (None, KeyLimits(tokens_per_day=1)):
        allowed.admit_conversation(known(limits=limits), "one", ["m"])
        allowed.admit_apart(known(limits=limits), "m")
    for limits in (KeyLimits(money_per_day=1.0), KeyLimits(money_per_conversation=1.0)):
        with pytest.raises(NotAllowed, match="prices"):
            allowed.admit_conversation(known(limits=limits), "one", ["m"])
    with pytest.raises(NotAllowed, match="prices"):
        allowed.admit_apart(known(limits=KeyLimits(money_per_day=1.0)), "m")


def test_who_may_spend_so_much_gets_no_summaries_whose_price_nobody_knows() -> None:
    tariff = Tariff("m", "settings", PRICES)
    allowed = Allowances(Tallies(Clock(NOON)), LimitSettings(), lambda *asked: tariff if asked[0] == "m" else None)
    limited = known(limits=KeyLimits(money_per_day=1.0))
    allowed.admit_conversation(limited, "one", ["m"])
    with pytest.raises(NotAllowed, match="'small' has no price here"):
        allowed.admit_conversation(limited, "one", ["m", "small"])


@pytest.mark.parametrize(
    ("limits", "upstream", "model", "is_measured", "allows"),
    [
        (None, "default", None, False, True),
        (KeyLimits(), "default", None, False, True),
        (KeyLimits(models=("gpt-*",)), "default", "gpt-x", True, True),
        (KeyLimits(models=("gpt-*",)), "default", "claude-x", True, False),
        (KeyLimits(models=("gpt-*",)), "default", None, False, False),
        (KeyLimits(models=("gpt-*",)), "default", None, True, True),
        (KeyLimits(upstreams=("near",)), "near", "m", True, True),
        (KeyLimits(upstreams=("near",)), "default", "m", True, False),
        (KeyLimits(upstreams=("near",)), "near", None, False, True),
        (KeyLimits(money_per_day=1.0), "default", None, False, False),
    ],
)
def test_a_key_is_for_its_models_and_upstreams_and_for_what_can_be_measured(
    limits: KeyLimits | None, upstream: str, model: str | None, is_measured: bool, allows: bool
) -> None:
    try:
        check_use(known(limits=limits), upstream, model, is_measured=is_measured)
    except NotAllowed:
        assert not allows
    else:
        assert allows
