"""Which samples a rank reads, round by round."""

from collections.abc import Iterator
from dataclasses import dataclass

from onecurve.data.order import Order, Samples
from onecurve.describe.plan import Plan
from onecurve.job.cadence import is_audited


@dataclass
class TrainingShares:
    """The samples of this rank, one group per round, after `step` steps, at `position`, and `ahead` steps too many."""

    order: Order
    plan: Plan
    data_rank: int
    steps: int
    ahead: int
    audit: int | None = None
    step: int = 0
    position: int = 0
    next_rank: int | None = None
    """The rank whose share is read too; None is the next one."""

    @property
    def partner(self) -> int | None:
        """The data-parallel rank whose share is read too in steps that are audited; None if none is."""
        if self.audit is None or self.plan.mesh.data == 1:
            return None
        return (self.data_rank + 1) % self.plan.mesh.data if self.next_rank is None else self.next_rank

    def reads_partner(self, step: int) -> bool:
        """True if the share of another rank is read in this step."""
        if self.audit is None or self.partner in (None, self.data_rank):
            return False
        return is_audited(step, self.step + 1, self.audit)

    def __iter__(self) -> Iterator[Samples]:
        begin = self.position
        for step in range(self.step + 1, self.steps + self.ahead + 1):
            partner = self.partner
            for rank in (self.data_rank, partner) if self.reads_partner(step) else (self.data_rank,):
                assert rank is not None
                for round_number in range(self.plan.rounds):
                    yield self.order.share(self.plan, rank, begin, round_number)
            begin += self.plan.global_batch
