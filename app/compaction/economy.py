"""The cost gate: whether what is due would cost more than it saves, by what models cost and what their cache holds."""

from __future__ import annotations

from app.compaction.progress import Progress
from app.core.summary.plan import Plan
from app.core.summary.worth import calls_of_plan, change_of_mask, change_of_plan
from app.core.tokens.economy import CostGate, Rates, is_worth, rates_of
from app.core.view.mask import Boundary
from app.providers.ledger import Ledger


class Economy:
    """Gate that puts off only what the window has room to do without, and only with all prices that it needs."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def puts_off(self, progress: Progress, plan: Plan) -> bool:
        """True if a compaction is to wait. One that only folds costs little, and is due for its size."""
        gate, rates = await self._gate(progress), self._rates(progress)
        job, brief = progress.job, progress.job.summary
        price = self._ledger.price_of(brief.model)
        if gate is None or rates is None or price is None or not plan.spans:
            return False
        case, shown = progress.case, rates if job.writing.is_by_own_model else None

        def is_too_dear() -> bool:
            calls = calls_of_plan(case.conversation, plan, case.budget, brief, price, shown)
            return not is_worth(change_of_plan(case, plan, brief), rates, gate, calls)

        return await progress.beside(is_too_dear)

    async def puts_off_mask(self, progress: Progress, boundary: Boundary) -> bool:
        gate, rates = await self._gate(progress), self._rates(progress)
        case, masking = progress.case, progress.case.masking
        if gate is None or rates is None or masking is None:
            return False
        return await progress.beside(lambda: not is_worth(change_of_mask(case, masking, boundary), rates, gate))

    async def _gate(self, progress: Progress) -> CostGate | None:
        """Return the gate; None if nothing may be put off: it is not wanted, or there is no room, or the trigger counts
        turns or messages. Whoever set that wants it whatever it costs."""
        job, case = progress.job, progress.case
        if job.policy.cost_gate is None or job.budget.trigger.counts_turns:
            return None
        has_room = await progress.beside(lambda: case.widest_view.tokens <= case.budget.hold)
        return job.policy.cost_gate if has_room else None

    def _rates(self, progress: Progress) -> Rates | None:
        job = progress.job
        price = self._ledger.price_of(job.model)
        return (
            None
            if price is None
            else rates_of(price, warm=self._ledger.is_warm(job.tenant, job.conversation_id, job.model))
        )
