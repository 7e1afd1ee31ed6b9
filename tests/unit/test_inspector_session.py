"""Sessions: what this server sealed counts for twelve hours, and nothing else does. Guesses: ten in ten minutes."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import pytest
from msgspec.structs import replace

from app.inspector.sessions import MOST_GUESSES, PERIOD_SECONDS, Guesses, Sessions
from app.runtime.caches import MOST_REMEMBERED
from tests.unit.clock import Clock

SECRET = b"a secret"
PASSWORD = "the password"
NOW = 1_800_000_000.0


@pytest.fixture
def clock() -> Clock:
    return Clock(NOW)


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(SECRET, PASSWORD, clock)


def test_a_session_ends_after_twelve_hours(sessions: Sessions, clock: Clock) -> None:
    sealed = sessions.seal(sessions.opened("a tenant"))
    clock.now += 12 * 3600 - 1
    assert sessions.unseal(sealed) is not None
    clock.now += 1
    assert sessions.unseal(sealed) is None


def test_a_cookie_of_another_secret_does_not_count(sessions: Sessions, clock: Clock) -> None:
    assert sessions.unseal(Sessions(b"another secret", PASSWORD, clock).seal(sessions.opened("a tenant"))) is None


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
    assert sessions.form_token(replace(mine, tenant="another tenant")) == token
    assert sessions.form_token(others) != token


def test_only_the_operators_password_is_accepted(sessions: Sessions) -> None:
    assert sessions.accepts(PASSWORD)
    for wrong in ("", PASSWORD[:-1], f"{PASSWORD} ", "é"):
        assert not sessions.accepts(wrong)
        assert not Sessions(SECRET).accepts(wrong)


def test_another_password_ends_all_sessions(sessions: Sessions, clock: Clock) -> None:
    for session in (sessions.opened("a tenant"), sessions.opened("", operator=True)):
        for other in (None, "another password"):
            assert Sessions(SECRET, other, clock).unseal(sessions.seal(session)) is None


def test_an_address_may_guess_ten_times_in_ten_minutes_and_others_are_not_affected() -> None:
    clock = Clock(1_000.0)
    guesses = Guesses(clock)
    for _ in range(MOST_GUESSES):
        assert guesses.wait("192.0.2.1") == 0
        guesses.count("192.0.2.1")
    assert 0 < guesses.wait("192.0.2.1") <= 1.05 * PERIOD_SECONDS
    assert guesses.wait("192.0.2.2") == 0
    for _ in range(2):  # Each time as many.
        clock.now += 1.05 * PERIOD_SECONDS
        for _ in range(MOST_GUESSES):
            assert guesses.wait("192.0.2.1") == 0
            guesses.count("192.0.2.1")
        assert guesses.wait("192.0.2.1") > 0


def test_guesses_that_are_refused_do_not_prolong_the_wait() -> None:
    clock = Clock(1_000.0)
    guesses = Guesses(clock)
    for _ in range(MOST_GUESSES):
        guesses.count("192.0.2.1")
    ends = clock.now + guesses.wait("192.0.2.1")
    clock.now += PERIOD_SECONDS / 2
    for _ in range(MOST_GUESSES):
        guesses.count("192.0.2.1")
    assert clock.now + guesses.wait("192.0.2.1") == ends


def test_a_crowd_of_addresses_takes_bounded_memory() -> None:
    guesses = Guesses(Clock(1_000.0))
    for number in range(MOST_REMEMBERED + 10):
        guesses.count(str(number))
    assert len(guesses._made) == MOST_REMEMBERED
