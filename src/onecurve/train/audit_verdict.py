"""What it means that two ranks have computed different gradients from the same samples and weights: a pure function.

When a step differs, it is computed again. Then there are four results for each share of the batch: two of its own rank
(the owner) and two of the rank that recomputes it (the witness). Results that are equal bit for bit have one number.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["faulty", "not repeatable", "not comparable", "other samples"]
"""A rank computes wrong numbers; nobody computes the same twice; each rank repeats its own numbers, but they are not
those of others; ranks have read different samples."""


@dataclass(frozen=True, kw_only=True)
class ShareFinding:
    """What one rank knows about its own gradients."""

    owner: int
    """Data-parallel rank."""
    witness: int
    """Data-parallel rank that recomputes its share: the owner itself, if no other rank can."""
    rank: int
    """Rank of the owner."""
    witness_rank: int
    results: tuple[int, int, int, int]
    """Numbers of the results: of the owner in the step, of the owner again, of the witness, of the witness again."""
    same_samples: bool = True
    tensor: str = ""
    """The parameter whose gradient differs, the first in backward; empty if none does."""
    tensors: int = 0
    """How many gradients differ."""
    is_rounding: bool = False
    """True if most gradients differ, all by no more than rounding does."""

    @property
    def differs(self) -> bool:
        """True if not all of the four results are the same."""
        return not self.same_samples or len(set(self.results)) > 1

    @property
    def is_split(self) -> bool:
        """True if both ranks repeat their own result, and they differ."""
        own, own_again, witness, witness_again = self.results
        return own == own_again != witness == witness_again and self.owner != self.witness

    @property
    def unsteady(self) -> int | None:
        """The data-parallel rank that did not repeat its own result, while the other one did; None if both did not."""
        own, own_again, witness, witness_again = self.results
        if self.owner == self.witness:
            return self.owner if max(Counter(self.results).values()) >= 3 else None
        if own == own_again:
            return self.witness
        return self.owner if witness == witness_again else None


@dataclass(frozen=True)
class AuditVerdict:
    """What has been found."""

    kind: Kind
    finding: ShareFinding
    """An example."""
    ranks: tuple[int, ...] = ()
    """The ranks that compute wrong numbers, or of which one does."""
    is_certain: bool = True
    """False if it is one of these ranks."""


def judge(findings: Sequence[ShareFinding]) -> AuditVerdict:
    """Say what is wrong if at least one finding differs. `findings`: those of all ranks."""
    differing = [finding for finding in findings if finding.differs]
    of_samples = [finding for finding in differing if not finding.same_samples]
    if of_samples:
        return AuditVerdict("other samples", of_samples[0])
    count = len({finding.owner for finding in findings})
    splits = [finding for finding in differing if finding.is_split]
    unsteady = {finding.unsteady for finding in differing if not finding.is_split}
    if unsteady:
        # A rank that cannot repeat its own numbers is at fault only if most others can.
        if None in unsteady or (count > 1 and len(unsteady) > count / 2):
            return AuditVerdict("not repeatable", next(finding for finding in differing if not finding.is_split))
        return _faulty(differing, {each for each in unsteady if each is not None}, is_certain=True)
    if all(finding.is_rounding for finding in splits):
        return AuditVerdict("not comparable", splits[0])
    if count == 2:
        return _faulty(splits, {0, 1}, is_certain=False)
    pairs = {(finding.owner, finding.witness) for finding in splits}
    suspects = set.intersection(*map(set, pairs))
    if not suspects or len(pairs) == count:
        return AuditVerdict("not comparable", splits[0])
    return _faulty(splits, suspects, is_certain=len(suspects) == 1)


def _faulty(findings: Sequence[ShareFinding], data_ranks: set[int], is_certain: bool) -> AuditVerdict:
    concerned = [finding for finding in findings if {finding.owner, finding.witness} & data_ranks]
    ranks = {finding.rank for finding in concerned if finding.owner in data_ranks}
    ranks |= {finding.witness_rank for finding in concerned if finding.witness in data_ranks}
    return AuditVerdict("faulty", concerned[0], tuple(sorted(ranks)), is_certain and len(ranks) == 1)
