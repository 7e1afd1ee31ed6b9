"""Table of what all processes of one Steno counted, a row for each.

Theory: counting has to cost a request next to nothing, and whichever worker is asked has to report what all of them
counted, those that died included. So the rows lie in memory that the processes share. Only the owner of a row writes
there, with one addition and without a lock; whoever reads adds the rows up. A worker that takes another one's place
goes on with its row, and no counter ever goes back. That wants a number's place to be known beforehand (`families`),
which bounds the labels as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from ctypes import Array, c_double
from multiprocessing.sharedctypes import RawArray

from msgspec import Struct

from app.telemetry.families import FAMILIES, Family

PROCESS = 0
"""Position in a row of the id of the process that writes it; 0 stands there if there is none."""


def _placed() -> tuple[Mapping[str, int], int]:
    """Position at which each family's numbers begin, by its name, and the length of a row."""
    places, end = {}, PROCESS + 1
    for family in FAMILIES:
        places[family.name] = end
        end += family.width
    return places, end


_PLACES, WIDTH = _placed()


def place_of(family: Family) -> int:
    """Position at which a family's numbers begin in a row."""
    return _PLACES[family.name]


class Table(Struct, frozen=True):
    cells: array[float] | Array[c_double]
    workers: int

    @classmethod
    def of_one(cls) -> Table:
        """Make a table for a process that serves alone."""
        return cls(array("d", bytes(8 * WIDTH)), 1)

    @classmethod
    def of_many(cls, workers: int) -> Table:
        """Make a table for workers, and their supervisor, whose row is the last. Made before they are started."""
        return cls(RawArray(c_double, WIDTH * (workers + 1)), workers)

    def row(self, number: int) -> memoryview[float]:
        return memoryview(self.cells).cast("B").cast("d")[number * WIDTH : (number + 1) * WIDTH]

    def sums(self, family: Family) -> list[float]:
        """Sum each of the family's numbers over all processes."""
        rows = (self.numbers(family, number) for number in range(len(self.cells) // WIDTH))
        return [sum(numbers) for numbers in zip(*rows, strict=True)]

    def numbers(self, family: Family, row: int) -> memoryview[float]:
        """Return the family's numbers of one process."""
        place = place_of(family)
        return self.row(row)[place : place + family.width]

    def processes(self) -> Iterator[tuple[int, int]]:
        """Return the workers that are alive, and their processes' ids."""
        for number in range(self.workers):
            if process := int(self.row(number)[PROCESS]):
                yield number, process
