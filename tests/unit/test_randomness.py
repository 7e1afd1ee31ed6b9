"""Random bytes come from the system, and no two take the same ones."""

from __future__ import annotations

import os

from app.providers.ledger import PAGE_BYTES, Randomness


def test_what_is_taken_is_as_long_as_asked_for_and_never_taken_twice() -> None:
    randomness = Randomness()
    taken = [randomness.hex(12) for _ in range(3 * PAGE_BYTES // 12)]
    assert {len(each) for each in taken} == {24}
    assert len(set(taken)) == len(taken)


def test_a_forked_process_takes_other_bytes() -> None:
    randomness = Randomness()
    randomness.hex(4)
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.write(writes, randomness.hex(16).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reads, 32).decode() != randomness.hex(16)
