"""Dialects: how a summary is asked for in a format, and what a refusal teaches about how to ask."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from re import Pattern
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from app.core.summary.gate import SummaryAnswer
from app.core.summary.prompts import SummaryRequest
from app.wire.summary_reader import Collected, SummaryReader, member_named


class Manners(Struct, frozen=True):
    """How a model behind an upstream wants to be asked for a summary, as far as its refusals taught."""

    cap: str
    """Name of the member that bounds the answer."""
    without: frozenset[str] = frozenset()
    """Members that it does not take."""


class SummaryDialect:
    """How a summary is asked for in one format."""

    name: str
    """Name of the format."""
    target: bytes
    """Path at which the call is posted; `/v1` stands for the path of the upstream's base URL."""
    headers: ClassVar[Sequence[tuple[bytes, bytes]]] = ()
    """Headers that the format wants beside what a body needs, where the caller does not give them; in lower case."""
    own_members: frozenset[str]
    """Members that a call says by itself, or leaves out on purpose; an operator may add others."""
    optional: tuple[str, ...]
    """Members that a call can do without, beside those that the operator adds."""
    caps: tuple[str, str]
    """Names of the member that bounds the answer: for most models, and for those that reason first."""
    least_output = 0
    """Smallest bound that is not refused."""
    reasoning: Pattern[str] = re.compile(r"(^|/)(o\d|gpt-5)")
    """Models that reason first, though nobody asks them to."""
    restrained: ClassVar[Mapping[str, Any]] = {}
    """Members by which a model that reasons first is asked to reason little."""
    said: ClassVar[Mapping[str, Any]] = {"stream": True}
    """Members of every call, among them that the answer is to be streamed."""
    collected: type[Collected]
    """The collector of an answer's parts."""

    def cap(self, model: str) -> str:
        """The member that bounds this model's answers, as far as nothing was learnt."""
        return self.caps[self._reasons(model)]

    def options(
        self, manners: Manners, model: str, most: int, allowance: int, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The members that a call depends on manners for: the cap of `most` tokens, with an `allowance` for a model
        that reasons first, the operator's parameters, and that the answer is to be streamed."""
        reasons = self._reasons(model)
        bound = max(self.least_output, most + (allowance if reasons else 0))
        wanted = {manners.cap: bound, **(self.restrained if reasons else {}), **parameters, **self.said}
        return {name: value for name, value in wanted.items() if name not in self._left_out(manners)}

    def taught(self, manners: Manners, refusal: bytes, sent: Mapping[str, Any]) -> Manners | None:
        """The manners to ask again with, or None if nothing is learnt from this refusal. `sent`: the options."""
        refused = member_named(self._known(refusal, sent), refusal) or member_named(self._added(sent), refusal)
        return replace(manners, without=manners.without | {refused}) if refused else None

    def quoting(self, request: SummaryRequest, model: str, options: Mapping[str, Any]) -> bytes:
        """The body that quotes a transcript."""
        raise NotImplementedError

    def continuing(
        self,
        messages: Sequence[bytes],
        cached: Mapping[str, bytes],
        instructions: str,
        model: str,
        options: Mapping[str, Any],
    ) -> bytes:
        """The body that continues the conversation itself, so that the provider finds the prompt in its cache: its raw
        messages and `WireRequest.cached`, which have to be of this format."""
        raise NotImplementedError

    def reader(self) -> SummaryReader:
        """A reader of one answer."""
        return SummaryReader(self.collected())

    def _reasons(self, model: str) -> bool:
        return self.reasoning.search(model) is not None

    def _left_out(self, manners: Manners) -> frozenset[str]:
        return manners.without

    def _known(self, refusal: bytes, sent: Mapping[str, Any]) -> Iterable[str]:  # noqa: ARG002 - a format may look into it
        """Optional members that were sent, as far as the refusal may be about them."""
        return (name for name in self.optional if name in sent)

    def _added(self, sent: Mapping[str, Any]) -> Iterable[str]:
        """Members that the operator added."""
        return (name for name in sent if name not in self.own_members)


def read_answer(dialect: SummaryDialect, body: bytes) -> SummaryAnswer | None:
    """The answer to a summary call, out of all of its bytes; None if they are no answer, or a part of one."""
    reader = dialect.reader()
    reader.feed(body)
    reader.end()
    return reader.answer
