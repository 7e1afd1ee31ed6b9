"""Lazy attributes: worked out once, without a lock."""

from __future__ import annotations

from threading import Event, Thread

from app.conversation.lazy import lazy


class Slow:
    def __init__(self, begun: Event, gate: Event) -> None:
        self.begun, self.gate, self.times = begun, gate, 0

    @lazy
    def answer(self) -> int:
        """What it is."""
        self.times += 1
        self.begun.set()
        assert self.gate.wait(10.0)
        return 42


def opened() -> Event:
    gate = Event()
    gate.set()
    return gate


def test_it_is_worked_out_once_and_for_each_instance() -> None:
    one, other = Slow(Event(), opened()), Slow(Event(), opened())
    assert (one.answer, one.answer, one.times, other.times) == (42, 42, 1, 0)
    del one.__dict__["answer"]
    assert (one.answer, one.times) == (42, 2)
    assert Slow.answer.__doc__ == "What it is."


def test_one_instance_does_not_wait_for_another() -> None:
    """As an event loop would for a worker thread."""
    held = Slow(Event(), Event())
    thread = Thread(target=lambda: held.answer)
    thread.start()
    assert held.begun.wait(10.0)
    assert Slow(Event(), opened()).answer == 42
    held.gate.set()
    thread.join()
