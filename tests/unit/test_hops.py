"""Which Stenos a request has passed, and which of them refuse it."""

from __future__ import annotations

import pytest

from app.errors import LoopDetected
from app.http.admission import MOST_HOPS, check_hops
from app.http.headers import HOPS, hops_in, new_instance, with_hop

HERE, THERE = b"00112233aabbccdd", b"0123456789abcdef"


def test_every_steno_adds_its_own_name_after_those_before_it() -> None:
    sent = with_hop(with_hop([(b"x-a", b"1")], THERE), HERE)
    assert sent == [(b"x-a", b"1"), (HOPS, THERE + b", " + HERE)]
    assert hops_in(sent) == [THERE, HERE]


def test_a_request_is_refused_by_whom_it_passed_before_and_by_nobody_else() -> None:
    for headers in ([], [(HOPS, THERE)], [(HOPS, THERE), (HOPS, new_instance())]):
        check_hops(headers, HERE)
    for headers in ([(HOPS, HERE)], [(HOPS, HERE + b"," + THERE)], [(HOPS, THERE), (HOPS, b" " + HERE + b" ")]):
        with pytest.raises(LoopDetected, match="the base_url of an upstream leads back here") as refused:
            check_hops(headers, HERE)
        assert (refused.value.status, refused.value.repeatable) == (508, False)


def test_a_row_of_stenos_has_an_end() -> None:
    """A circle through a balancer passes another replica each time."""
    headers: list[tuple[bytes, bytes]] = []
    for _ in range(MOST_HOPS):
        headers = with_hop(headers, new_instance())
    check_hops(headers, HERE)
    with pytest.raises(LoopDetected, match="at most 16"):
        check_hops(with_hop(headers, THERE), HERE)


@pytest.mark.parametrize("made_up", [b"", b",,", b"x" * 16, THERE + b"0", b"ABCDEF0123456789", b"\xff" * 16, b"a b"])
def test_what_names_no_instance_goes_no_further(made_up: bytes) -> None:
    assert with_hop([(HOPS, made_up)], HERE) == [(HOPS, HERE)]
