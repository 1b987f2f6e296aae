"""The audit: some steps are computed a second time, by another rank, and the gradients' hashes are compared.

[Note: an audited step]
*Share*: the samples of a step that one data-parallel rank trains on. *Partner*: the rank whose share this rank
recomputes. Before the step, each rank computes its partner's share, with the partner's seeds, and keeps only hashes of
the gradients. All that the forward has changed is restored. Then comes the step itself, in which hashes of the rank's
own gradients are taken, before they are reduced. One sum over all ranks tells whether any pair differs, before the
optimizer changes the weights.

    partner's share → restore → own share → sum of the differences == 0 → update
                                                  └ else: restore → partner's share → restore → own share → verdict

If something differs, both are computed again: four results tell a fault from a model that does not repeat itself
(audit_verdict.py). The gradients of the last pass are those that the update uses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import FaultyRankError
from onecurve.describe.units import counted
from onecurve.device.bit_hash import bit_hash, mixed
from onecurve.device.collectives import all_gather, all_gather_text, all_reduce_sum
from onecurve.device.rng import preserve_rng_state
from onecurve.job.batch import MicroBatch
from onecurve.job.cadence import is_audited
from onecurve.job.job import Loss
from onecurve.train.audit_verdict import AuditVerdict, ShareFinding, judge
from onecurve.train.part import Part, Restorable

_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Relative difference of gradients' norms that rounding may cause; the precision may be lower than the dtype."""
_LOW_ROUNDING = 5e-2

AuditEvent = Literal["audit", "warning"]
Compute = Callable[[Sequence[MicroBatch], int], Tensor]
"""A function (rounds, data rank whose seeds are used) → the sums of `Part.run_rounds`."""


@dataclass(frozen=True, kw_only=True)
class AuditRanks:
    """Who recomputes whose share."""

    data_rank: int
    """Data-parallel rank of this rank."""
    partners: Sequence[int]
    """For each data-parallel rank, the one whose share it recomputes: itself, if its machine is like no other."""
    data_ranks: Sequence[int]
    """The ranks that hold the same part of the model as this one, by data-parallel rank."""
    hosts: Sequence[str]
    """Name of each rank's host."""

    @property
    def partner(self) -> int:
        """The data-parallel rank whose share this rank recomputes."""
        return self.partners[self.data_rank]


class Audit:
    """Recomputes some steps. All ranks must call each method."""

    def __init__(
        self,
        part: Part,
        loss: Loss,
        every: int,
        ranks: AuditRanks,
        low_precision: bool,
        say: Callable[[AuditEvent, str], None],
    ) -> None:
        """`say`: called with the name of an event, and a text for a person."""
        self._part, self._loss, self._every, self._ranks, self._say = part, loss, every, ranks, say
        self._partner = ranks.partner
        self._low_precision = low_precision
        self._is_off = False
        self._last_equal: int | None = None
        """The newest audited step in which all ranks agreed."""
        self._state: Restorable | None = None
        self._rounds: Sequence[MicroBatch] = ()
        self._witnessed = torch.empty(0)

    def is_due(self, step: int, first_step: int) -> bool:
        """True if a step is to be audited. The first one of a process always is: it shows what cannot be audited."""
        return not self._is_off and is_audited(step, first_step, self._every)

    def begin(self, own: Sequence[MicroBatch], of_partner: Sequence[MicroBatch], compute: Compute) -> None:
        """Compute the partner's share before a step. `of_partner`: its samples, if it is another rank."""
        self._rounds = own if self._partner == self._ranks.data_rank else of_partner
        self._state = self._part.forward_state(self._loss)
        self._witnessed, _, _ = self._recompute(compute)

    def run(self, step: int, own: Sequence[MicroBatch], compute: Compute) -> Tensor:
        """Compute a step for which `begin` was called, and compare. Raises FaultyRankError if a rank is at fault."""
        try:
            totals, (hashes, _, _) = self._captured(own, compute, self._ranks.data_rank)
            difference = mixed(hashes, self._ranks.data_rank).sum() - mixed(self._witnessed, self._partner).sum()
            if all_reduce_sum(self._part.group, difference.view(1)).item():
                return self._compute_again(step, own, hashes, compute)
            self._last_equal = step
            return totals
        finally:
            self._state, self._rounds = None, ()

    @property
    def has_begun(self) -> bool:
        """True if the next step is to be compared."""
        return self._state is not None

    def _recompute(self, compute: Compute, norms: bool = False) -> tuple[Tensor, Tensor, list[int]]:
        """Compute the partner's share, and leave no trace of it."""
        assert self._state is not None
        with preserve_rng_state():
            _, seen = self._captured(self._rounds, compute, self._partner, norms)
        self._state.restore()
        self._part.clear_gradients()
        return seen

    def _captured(
        self, rounds: Sequence[MicroBatch], compute: Compute, data_rank: int, norms: bool = False
    ) -> tuple[Tensor, tuple[Tensor, Tensor, list[int]]]:
        """Compute a share; return its sums, and what was seen of its gradients: hashes (the first one is that of the
        samples), norms, and the order of backward."""
        self._part.clear_gradients()
        capture = self._part.gradient_hashes
        with capture.captured(norms):
            totals = compute(rounds, data_rank)
        hashes, values, order = capture.take()
        return totals, (torch.cat([_samples_hash(rounds).to(hashes.device).view(1), hashes]), values, order)

    def _compute_again(self, step: int, own: Sequence[MicroBatch], hashes: Tensor, compute: Compute) -> Tensor:
        """Compute both shares again, and find out why results differ."""
        assert self._state is not None
        self._state.restore()
        again, norms_again, _ = self._recompute(compute, norms=True)
        totals, (own_again, own_norms, order) = self._captured(own, compute, self._ranks.data_rank, norms=True)
        witness = self._ranks.partners.index(self._ranks.data_rank)
        if self._partner == self._ranks.data_rank:
            witness = self._partner  # after a change to it
        group = self._part.data_group
        of_witness = [all_gather(group, values)[witness] for values in (self._witnessed, again, norms_again)]
        finding = self._finding(witness, [hashes, own_again, *of_witness[:2]], [own_norms, of_witness[2]], order)
        findings = [from_json(ShareFinding, text.encode(), "finding") for text in all_gather_text(to_json(finding))]
        self._act(step, judge(findings))
        return totals

    def _finding(self, witness: int, hashes: list[Tensor], norms: list[Tensor], order: list[int]) -> ShareFinding:
        own, *others = (each.tolist() for each in hashes)
        results = [own, *others]
        differing = [index for index in range(1, len(own)) if len({result[index] for result in results}) > 1]
        dtype = self._part.trainable[0].local.dtype
        most = _LOW_ROUNDING if self._low_precision else _ROUNDING.get(dtype, _LOW_ROUNDING)
        is_close = bool(((norms[0] - norms[1]).abs() <= most * torch.maximum(*norms)).all())
        first = next((index for index in order if index + 1 in differing), differing[0] - 1 if differing else None)
        numbers = [results.index(result) for result in results]
        return ShareFinding(
            owner=self._ranks.data_rank,
            witness=witness,
            rank=self._ranks.data_ranks[self._ranks.data_rank],
            witness_rank=self._ranks.data_ranks[witness],
            results=(numbers[0], numbers[1], numbers[2], numbers[3]),
            same_samples=len({result[0] for result in results}) == 1,
            tensor=self._part.trainable[first].name if first is not None else "",
            tensors=len(differing),
            is_rounding=is_close and 2 * len(differing) > len(own) - 1,
        )

    def _act(self, step: int, verdict: AuditVerdict) -> None:
        """End the run, or change what is audited from now on."""
        finding = verdict.finding
        if verdict.kind == "faulty":
            self._say("audit", f"step {step}: {self._at_fault(verdict)}; {finding.tensor!r} differs")
            raise FaultyRankError(self._fault_text(step, verdict), verdict.ranks)
        pair = f"{self._named(finding.rank)} and {self._named(finding.witness_rank)}"
        if verdict.kind == "not repeatable":
            self._is_off = True
            self._say(
                "warning",
                f"audit: in step {step} the gradient of {finding.tensor!r} differs each time that it is computed from "
                "the same samples, weights and seeds, so there is nothing to compare; the audit is off from now on",
            )
        elif verdict.kind == "other samples":
            self._say(
                "warning",
                f"audit: in step {step} {pair} have read different values for the same samples: the data is not the "
                "same each time that it is read. Each rank recomputes its own share from now on",
            )
        else:
            self._say(
                "warning",
                f"audit: in step {step} the gradients of {pair} differ, about as much as by rounding, and each repeats "
                "its own: their machines, or operations over several ranks, do not give the same bits. Each rank "
                "recomputes its own share from now on",
            )
        self._partner = self._ranks.data_rank

    def _fault_text(self, step: int, verdict: AuditVerdict) -> str:
        finding = verdict.finding
        others = f" and of {counted(finding.tensors - 1, 'other parameter')}" if finding.tensors > 1 else ""
        parameters = f"{finding.tensor!r}{others}"
        whose = f"{self._named(finding.rank)} has computed"
        by = "it computes" if finding.witness == finding.owner else f"{self._named(finding.witness_rank)} computes"
        earlier = f"step {self._last_equal}" if self._last_equal is not None else "none"
        return (
            f"step {step}: the gradient of {parameters} that {whose} is not the one that {by} from the "
            f"same samples and weights: {self._at_fault(verdict)}. The update of this step was not applied; the last "
            f"audited step in which all ranks agreed: {earlier}. Test the memory and the processor of the host, or "
            "leave it out, and start the run again: it continues from its newest checkpoint"
        )

    def _at_fault(self, verdict: AuditVerdict) -> str:
        names = " or ".join(map(self._named, verdict.ranks))
        return f"{names} computes wrong numbers"

    def _named(self, rank: int) -> str:
        return f"rank {rank} on {self._ranks.hosts[rank]}"


def _samples_hash(rounds: Sequence[MicroBatch]) -> Tensor:
    """A hash of all tensors of some micro-batches."""
    leaves = tree_leaves([(micro.inputs, micro.target) for micro in rounds])
    hashes = [bit_hash(leaf).cpu() for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_sparse]
    return mixed(torch.stack(hashes), 0).sum() if hashes else torch.zeros((), dtype=torch.int64)
