"""The sawtooth: tokens over the requests of a conversation, as the geometry of a plot.

What the client sends only grows; what is forwarded grows until the trigger, and falls with each compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from math import floor, log10
from typing import NamedTuple

from msgspec import Struct

from app.inspector.formats import counted, money, short
from app.store import StoredUsage

WIDTH, HEIGHT = 1_000, 100
"""Size of the drawing in its own units; the style sheet says what it measures on the page."""
_FILLED = 0.74
"""Share of a bar's place that it fills; the rest parts it from the next one."""


class Piece(Struct, frozen=True):
    kind: str
    """CSS class of the piece, and its name in the legend."""
    y: float
    height: float


class Bar(Struct, frozen=True):
    x: float
    label: str
    """Text that is shown when the bar is pointed at."""
    pieces: Sequence[Piece]


class Stacked(Struct, frozen=True):
    """Bars, one a place, made of kinds that stand on each other."""

    bars: Sequence[Bar]
    width: float
    """Width of each bar, in the drawing's units."""
    top: float
    """Amount of the highest bar."""
    kinds: Sequence[str]
    """Kinds that occur, the lowest first."""
    first: str
    last: str


def stacked(places: Sequence[tuple[str, str, Mapping[str, float]]], kinds: Sequence[str]) -> Stacked:
    """Chart of `places`: each one's name, its text when pointed at, and its amounts by kind."""
    top = max((sum(amounts.values()) for *_, amounts in places), default=0.0)
    step = WIDTH / max(len(places), 1)
    bars = [
        Bar(round(number * step + step * (1 - _FILLED) / 2, 2), label, _pieces(amounts, kinds, top))
        for number, (_, label, amounts) in enumerate(places)
    ]
    there = [kind for kind in kinds if any(amounts.get(kind) for *_, amounts in places)]
    return Stacked(
        bars, round(step * _FILLED, 2), top, there, places[0][0] if places else "", places[-1][0] if places else ""
    )


def _pieces(amounts: Mapping[str, float], kinds: Sequence[str], top: float) -> list[Piece]:
    pieces, reached = [], float(HEIGHT)
    for kind in kinds:
        if height := HEIGHT * amounts.get(kind, 0.0) / top if top else 0.0:
            reached -= height
            pieces.append(Piece(kind, round(reached, 2), round(height, 2)))
    return pieces


def teeth_of(records: Sequence[StoredUsage], requests: int, most: int) -> list[Tooth]:
    """Latest requests that were answered, oldest first. `records`: the latest of the conversation, in any order;
    `requests`: how many it has had."""
    calls: dict[str, list[StoredUsage]] = {}
    for stored in sorted(records, key=lambda each: (each.created_at, each.record.id)):
        calls.setdefault(stored.record.request_id, []).append(stored)
    answered = [of_request for of_request in calls.values() if any(_is_message(each) for each in of_request)]
    first = max(1, requests - len(answered) + 1)
    teeth: list[Tooth] = []
    for number, of_request in enumerate(answered, first):
        teeth.append(_tooth(number, of_request, teeth[-1] if teeth else None))
    return teeth[-most:]


def _tooth(number: int, calls: Sequence[StoredUsage], previous: Tooth | None) -> Tooth:
    """Tooth of a request, from its last call where it was sent once more, smaller, after a refusal."""
    latest = next(each for each in reversed(calls) if _is_message(each))
    record, decided = latest.record, latest.record.decided
    costs = [each.record.cost for each in calls if each.record.cost is not None]
    forwarded = record.forwarded or record.tokens.prompt or 0
    sent = record.estimated or forwarded
    grown = None if previous is None else previous.forwarded + max(0, sent - previous.sent)
    return Tooth(
        number=number,
        request_id=record.request_id,
        at=latest.created_at,
        model=record.model,
        sent=sent,
        forwarded=forwarded,
        reported=record.tokens.prompt,
        trigger=decided.trigger if decided else None,
        limit=decided.limit if decided else None,
        window=decided.window if decided else None,
        status=record.status,
        context_status=record.context_status or "",
        actions=decided.actions if decided else (),
        reason=decided.reason if decided else None,
        waited=decided.waited_seconds if decided else None,
        cost=sum(costs) if costs else None,
        compactions=tuple(
            compaction_of(made, sent, forwarded, grown, decided.waited_seconds if decided and not ahead else None)
            for ahead in (False, True)
            if (made := [each for each in calls if each.record.purpose == ("background" if ahead else "summary")])
        ),
    )


def compaction_of(
    calls: Sequence[StoredUsage], sent: int, forwarded: int, grown: int | None, waited: float | None
) -> MarkedCompaction:
    """Compaction of the calls for summaries that one request led to. Summaries made for requests to come have spared
    nothing yet.

    `sent` and `forwarded`: the request's tokens. `grown`: those of the previous payload with the messages that came
    since; None for the first request, whose summaries spared what they replaced.
    """
    ahead = calls[0].record.purpose == "background"
    made = [each.record.made for each in calls if each.record.made is not None]
    kept = [each for each in made if each.summary is not None]
    replaced, summaries = sum(each.replaced for each in kept), sum(each.summary or 0 for each in kept)
    costs = [each.record.cost for each in calls if each.record.cost is not None]
    seconds = [each.seconds for each in made]
    without = forwarded + max(0, replaced - summaries) if grown is None else grown
    return MarkedCompaction(
        before=forwarded if ahead or not kept else max(forwarded, min(sent, without)),
        after=forwarded,
        replaced=replaced,
        summaries=summaries,
        made=len(kept),
        calls=len(calls),
        seconds=waited if waited is not None else max(seconds, default=None),
        cost=sum(costs) if costs else None,
        ahead=ahead,
    )


def _is_message(stored: StoredUsage) -> bool:
    return stored.record.purpose == "message"


class MarkedCompaction(Struct, frozen=True):
    """Summaries that one request led to."""

    before: int
    """Tokens of the payload without the summaries."""
    after: int
    """Tokens of the payload with the summaries."""
    replaced: int
    """Tokens of the messages that the summaries stand for."""
    summaries: int
    """Tokens of the summaries themselves."""
    made: int
    """Number of summaries."""
    calls: int
    """Calls to the model that wrote them; more than were made where some failed."""
    seconds: float | None
    cost: float | None
    ahead: bool
    """Made after the answer, for requests to come."""

    @property
    def words(self) -> str:
        if not self.made:
            return f"{counted(self.calls, 'call')} failed"
        parts = [f"{short(self.replaced)} → {short(self.summaries)}"]
        parts += [f"{self.seconds:.1f} s"] if self.seconds is not None else []
        parts += [money(self.cost)] if self.cost is not None else []
        return f"{counted(self.made, 'summary', 'summaries')}{' ahead' if self.ahead else ''}: {', '.join(parts)}"


class Tooth(Struct, frozen=True):
    """Request, as the ledger has it. Tokens are the provider's; None where they were not kept."""

    number: int
    """Number among the conversation's requests, from 1."""
    request_id: str
    at: datetime
    model: str
    sent: int
    """Tokens that the client sent."""
    forwarded: int
    reported: int | None
    """Prompt tokens as the provider counted them."""
    trigger: int | None
    limit: int | None
    window: int | None
    status: int
    context_status: str
    actions: tuple[str, ...]
    reason: str | None
    waited: float | None
    """Seconds that the request waited for a compaction."""
    cost: float | None
    """Cost of the answer and of the summaries made for it."""
    compactions: tuple[MarkedCompaction, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Details of the request, in short lines."""
        said = [f"Request {self.number}" + (f", status {self.status}" if self.status != 200 else "")]
        said.append(f"sent {self.sent:,}, forwarded {self.forwarded:,}")
        if self.reported is not None:
            said.append(f"the provider counted {self.reported:,}")
        if self.trigger is not None:
            said.append(f"trigger {self.trigger:,}")
        if self.actions:
            said.append(_fitted(", ".join(self.actions)))
        said += [_fitted(each.words) for each in self.compactions]
        if self.waited is not None:
            said.append(f"waited {self.waited:.1f} s")
        return said


class Size(Struct, frozen=True):
    """Size of a plot, in units of its view box."""

    width: int
    height: int
    left: int
    """Room for the axis."""
    right: int = 12
    top: int = 26
    bottom: int = 24


WIDE = Size(960, 400, 52)
NARROW = Size(360, 260, 44)
LABEL_WIDTH = 76
"""Room for the numbers of a compaction; where the one before it is nearer, it has none."""
TIP_WIDTH = 208
LONGEST_LINE = 34
"""Characters of a line of details."""
_CEILING = 2.2
"""Windows up to which the axis is even. The client's history has no bound: what is above is squeezed into a band."""
_BAND = 26
"""Height of the band that squeezes what lies above the even axis."""
_BREAK = 12
"""Height of the gap under the band, where the axis is broken."""
_FLOOR = 0.3
"""Share of the trigger below which a plot is drawn to the size of what was sent instead of the window's."""
_STEPS = (1, 2, 2.5, 5, 10)
_LINES = 4
"""Number of grid lines across the plot, about."""
Place = Callable[[float], float]
"""Function from a number to its coordinate in the plot."""


class Scale(Struct, frozen=True):
    """Axis of tokens: even up to `even`, and above a break squeezed into a band up to `most`."""

    size: Size
    even: float
    most: float

    @property
    def is_broken(self) -> bool:
        return self.most > self.even

    @property
    def broken_at(self) -> float:
        """Coordinate of the middle of the gap."""
        return self.size.top + _BAND + _BREAK / 2

    def __call__(self, tokens: float) -> float:
        size, base = self.size, self.size.height - self.size.bottom
        if not self.is_broken:
            return round(base - (base - size.top) * min(tokens, self.even) / self.even, 1)
        if tokens <= self.even:
            return round(base - (base - size.top - _BAND - _BREAK) * tokens / self.even, 1)
        share = (min(tokens, self.most) - self.even) / (self.most - self.even)
        return round(size.top + _BAND * (1 - share), 1)


class Tick(NamedTuple):
    at: float
    label: str


class Mark(NamedTuple):
    """Mark of a compaction in the plot."""

    x: float
    upper: float
    lower: float
    label: str
    """Text of the mark; empty where there is no room for it."""
    anchor: str
    tooth: Tooth
    compaction: MarkedCompaction


class Column(NamedTuple):
    """Column in which a request answers to the pointer, and the place of its details."""

    x: float
    left: float
    width: float
    sent_at: float
    forwarded_at: float
    tip_x: float
    tooth: Tooth


class Plot(Struct, frozen=True):
    size: Size
    sent: str
    """Line of what was sent: its points, as SVG writes them."""
    forwarded: str
    area: str
    """Area of what was forwarded, as points."""
    trigger: str
    """Path of the trigger, which may differ from request to request; empty where it is not known, or above the plot."""
    window: str
    window_label: Tick | None
    trigger_label: Tick | None
    above: tuple[str, ...]
    """Lines that lie above the plot, in words."""
    broken_at: float | None
    """Coordinate at which the axis of tokens is broken; None where it is even."""
    broken: str
    """Sign of the break, as points of a line across the plot."""
    marks: tuple[Mark, ...]
    columns: tuple[Column, ...]
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]

    @property
    def base(self) -> float:
        """Coordinate of the axis of requests."""
        return self.size.height - self.size.bottom

    @property
    def first(self) -> int:
        """Number of the first request that is shown."""
        return self.columns[0].tooth.number

    @property
    def last(self) -> int:
        return self.columns[-1].tooth.number


def plot_of(teeth: Sequence[Tooth], size: Size = WIDE) -> Plot | None:
    """Plot of the requests; None without requests."""
    if not teeth:
        return None
    most = max(max(tooth.sent, tooth.forwarded, *(each.before for each in tooth.compactions)) for tooth in teeth)
    highest = _highest(teeth, most)
    step = _nice(highest / _LINES)
    highest = step * -(-highest // step)
    inner, base = size.width - size.left - size.right, size.height - size.bottom
    y = Scale(size, highest, most)

    def x(place: float) -> float:
        return round(size.left + inner * (place + 0.5) / len(teeth), 1)

    sent = [(x(place), y(tooth.sent)) for place, tooth in enumerate(teeth)]
    forwarded = [(x(place), y(tooth.forwarded)) for place, tooth in enumerate(teeth)]
    trigger_path, window_path = (
        _path([(y(each) if each is not None and each <= highest else None) for each in series], size, len(teeth))
        for series in ([tooth.trigger for tooth in teeth], [tooth.window for tooth in teeth])
    )
    latest = teeth[-1]
    width = inner / len(teeth)
    return Plot(
        size=size,
        sent=_points(sent),
        forwarded=_points(forwarded),
        area=_points([(forwarded[0][0], base), *forwarded, (forwarded[-1][0], base)]),
        trigger=trigger_path,
        window=window_path,
        window_label=_label("window", latest.window, highest, y),
        trigger_label=_label("trigger", latest.trigger, highest, y),
        above=tuple(_above(latest, highest)),
        marks=tuple(_marks(teeth, size, x, y)),
        columns=tuple(
            Column(
                x=x(place),
                left=round(size.left + width * place, 1),
                width=round(width, 1),
                sent_at=sent[place][1],
                forwarded_at=forwarded[place][1],
                tip_x=_tip_at(x(place), size),
                tooth=tooth,
            )
            for place, tooth in enumerate(teeth)
        ),
        broken_at=y.broken_at if y.is_broken else None,
        broken=_zigzag(size, y.broken_at) if y.is_broken else "",
        y_ticks=tuple(
            Tick(y(tokens), short(tokens))
            for tokens in (*(step * number for number in range(round(highest / step) + 1)), *([most] * y.is_broken))
        ),
        x_ticks=tuple(_x_ticks(teeth, x, size)),
    )


def _fitted(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _highest(teeth: Sequence[Tooth], most: int) -> float:
    """Least number of tokens up to which the axis is even. `most`: tokens of all that is drawn."""
    window = max((tooth.window or 0 for tooth in teeth), default=0)
    trigger = max((tooth.trigger or tooth.window or 0 for tooth in teeth), default=0)
    if not window or most < _FLOOR * trigger:
        return max(1, most) * 1.15
    return min(max(window, most), _CEILING * window) * 1.04


def _nice(least: float) -> float:
    """Smallest round step that is no smaller."""
    power = 10.0 ** floor(log10(max(least, 1)))
    return next(power * step for step in _STEPS if power * step >= least)


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _path(heights: Sequence[float | None], size: Size, count: int) -> str:
    """Steps from request to request; interrupted where there is no height."""
    inner = size.width - size.left - size.right
    written, before = [], None
    for place, height in enumerate(heights):
        if height is not None:
            left, right = (round(size.left + inner * edge / count, 1) for edge in (place, place + 1))
            if before != height:
                written.append(f"M{left:g} {height:g}" if before is None else f"V{height:g}")
            written.append(f"H{right:g}")
        before = height
    return "".join(written)


def _zigzag(size: Size, at: float) -> str:
    """Points of a zigzag across the plot, from the axis on."""
    places = range(size.left - 6, size.width - size.right + 1, 6)
    return _points([(x, at + (2 if number % 2 else -2)) for number, x in enumerate(places)])


def _label(name: str, tokens: int | None, highest: float, y: Place) -> Tick | None:
    if tokens is None or tokens > highest:
        return None
    return Tick(y(tokens), f"{name} {short(tokens)}")


def _above(latest: Tooth, highest: float) -> Iterator[str]:
    for name, tokens in (("trigger", latest.trigger), ("window", latest.window)):
        if tokens is not None and tokens > highest:
            yield f"{name} {short(tokens)}"


def _marks(teeth: Sequence[Tooth], size: Size, x: Place, y: Place) -> Iterator[Mark]:
    free = 0.0
    for place, tooth in enumerate(teeth):
        for compaction in tooth.compactions:
            at, before, after = x(place), compaction.before, compaction.after
            sizes = (compaction.replaced, compaction.summaries) if compaction.ahead else (before, after)
            label = f"{short(sizes[0])} → {short(sizes[1])}" if at >= free and sizes[0] > sizes[1] else ""
            free = at + LABEL_WIDTH if label else free
            anchor = "start" if at < size.left + 60 else "end" if at > size.width - 60 else "middle"
            yield Mark(at, y(before), y(after), label, anchor, tooth, compaction)


def _tip_at(x: float, size: Size) -> float:
    """Place of the details: beside the request, and inside the plot."""
    return x + 10 if x + 10 + TIP_WIDTH < size.width else max(0.0, x - 10 - TIP_WIDTH)


def _x_ticks(teeth: Sequence[Tooth], x: Place, size: Size) -> Iterator[Tick]:
    """Ticks at round numbers, and at the first and the last request, where those do not stand too near."""
    apart = max(1, round(_nice(len(teeth) / (size.width / 90))))
    first, last = teeth[0].number, teeth[-1].number
    for place, tooth in enumerate(teeth):
        is_end = tooth.number in (first, last)
        is_round = tooth.number % apart == 0 and min(tooth.number - first, last - tooth.number) >= 0.6 * apart
        if is_end or is_round:
            yield Tick(x(place), str(tooth.number))
