"""Sessions: what this server sealed counts for twelve hours, and nothing else does."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from msgspec.structs import replace

from app.inspector.links import LINK_SECONDS, issued_at, operator_link, operator_token
from app.inspector.session import LASTS_SECONDS, OPERATORS, Sessions
from tests.unit.clock import Clock

SECRET = b"a secret"
NOW = 1_800_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(SECRET, clock)


def test_what_was_sealed_is_read_again_by_every_worker(sessions: Sessions, clock: Clock) -> None:
    session = replace(sessions.opened("", operator=True), tenant="a tenant")
    assert Sessions(SECRET, clock).unseal(sessions.seal(session)) == session
    assert (session.tenant, session.operator, session.expires) == ("a tenant", True, 1_000 * (int(NOW) + LASTS_SECONDS))


def test_a_session_ends_after_twelve_hours(sessions: Sessions, clock: Clock) -> None:
    sealed = sessions.seal(sessions.opened("a tenant"))
    clock.now += 12 * 3600 - 1
    assert sessions.unseal(sealed) is not None
    clock.now += 1
    assert sessions.unseal(sealed) is None


def test_a_session_ends_with_the_key_or_token_that_opened_it(sessions: Sessions, clock: Clock) -> None:
    session = sessions.opened("a tenant", key="key_1", until=clock() + 60)
    sealed = sessions.seal(session)
    assert sessions.unseal(sealed) == session
    clock.now += 61
    assert sessions.unseal(sealed) is None


def test_a_cookie_of_another_secret_does_not_count(sessions: Sessions) -> None:
    assert sessions.unseal(Sessions(b"another secret").seal(sessions.opened("a tenant"))) is None


def test_no_byte_of_a_cookie_can_be_changed(sessions: Sessions) -> None:
    sealed = urlsafe_b64decode(sessions.seal(sessions.opened("a tenant")) + "==")
    for place in range(len(sealed)):
        forged = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        assert sessions.unseal(urlsafe_b64encode(forged).decode()) is None


@pytest.mark.parametrize("cookie", ["", "x", "é", "A" * 10_000, "-", "====", "\x00"])
def test_what_is_no_cookie_of_ours_is_none(cookie: str, sessions: Sessions) -> None:
    assert sessions.unseal(cookie) is None


def test_a_form_belongs_to_its_session_and_to_no_other(sessions: Sessions) -> None:
    mine, others = sessions.opened("a tenant"), sessions.opened("a tenant")
    token = sessions.form_token(mine)
    assert sessions.sent_from_form(mine, token)
    assert sessions.sent_from_form(replace(mine, tenant="another tenant"), token)
    for wrong in (sessions.form_token(others), "", token[:-1], "é"):
        assert not sessions.sent_from_form(mine, wrong)


def test_an_operators_link_is_good_at_every_replica_and_with_no_other_secret() -> None:
    token = operator_token(SECRET, 1_000)
    assert operator_link(SECRET, "http://127.0.0.1:8080/").startswith("http://127.0.0.1:8080/ui?token=")
    assert issued_at(SECRET, token) == 1_000
    later = f"{2_000:012x}{token[12:]}"
    others = operator_token(b"another secret")
    for wrong in (others, later, token.upper(), token[:-1], token + "0", "", "é", "\u0660" * 60):
        assert issued_at(SECRET, wrong) is None


def test_an_operators_link_opens_sessions_for_a_day(sessions: Sessions, clock: Clock) -> None:
    issued = int(1_000 * NOW)
    clock.now += LINK_SECONDS - 1
    assert sessions.opens(issued, {})
    clock.now += 1
    assert not sessions.opens(issued, {})


def test_a_revocation_ends_what_was_issued_until_then_and_nothing_later(sessions: Sessions, clock: Clock) -> None:
    issued, before = int(1_000 * NOW), sessions.opened("", operator=True)
    clock.now += 0.001
    revoked, after = {OPERATORS: issued}, sessions.opened("", operator=True)
    assert [sessions.opens(moment, revoked) for moment in (issued, issued + 1)] == [False, True]
    assert [before.is_over(revoked), after.is_over(revoked)] == [True, False]
    assert before.is_over({OPERATORS: issued, after.id: issued})
    assert not replace(sessions.opened("a tenant"), tenant="a tenant").is_over(revoked), "not an operator's"


def test_a_session_that_was_ended_is_over_and_no_other(sessions: Sessions) -> None:
    mine, others = sessions.opened("a tenant"), sessions.opened("a tenant")
    assert mine.is_over({mine.id: 1})
    assert not others.is_over({mine.id: 1})
    assert set(mine.revoked_by) == {mine.id}
