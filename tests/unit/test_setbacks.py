"""A compaction that keeps failing is not tried again on every request."""

from app.setbacks import Setbacks


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_one_failure_is_tried_again_at_once_and_the_second_after_a_pause() -> None:
    clock = Clock()
    setbacks = Setbacks(clock)
    setbacks.failed("a")
    assert not setbacks.pauses("a")
    setbacks.failed("a")
    assert setbacks.pauses("a")
    assert not setbacks.pauses("b")
    clock.now = 30.0
    assert not setbacks.pauses("a")


def test_the_pause_doubles_up_to_five_minutes() -> None:
    clock = Clock()
    setbacks = Setbacks(clock)
    setbacks.failed("a")
    pauses = []
    for _ in range(6):
        setbacks.failed("a")
        start = clock.now
        while setbacks.pauses("a"):
            clock.now += 1.0
        pauses.append(clock.now - start)
    assert pauses == [30, 60, 120, 240, 300, 300]


def test_a_success_ends_it() -> None:
    setbacks = Setbacks(Clock())
    for _ in range(5):
        setbacks.failed("a")
    setbacks.succeeded("a")
    setbacks.failed("a")
    assert not setbacks.pauses("a")


def test_only_so_much_is_remembered() -> None:
    setbacks = Setbacks(Clock())
    for number in range(10_001):
        setbacks.failed(number)
        setbacks.failed(number)
    assert not setbacks.pauses(0)
    assert setbacks.pauses(10_000)
