"""The plan: plain data that says how a job runs on a cluster.

Its short text form round-trips, ones and defaults omitted: `replicate2·shard2 mb4×8 bf16`, uneven shares as
`mb(6,2)×8`, and `reduce=round` where gradients are reduced after every round.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import AXES, Mesh

Precision = Literal["fp64", "fp32", "bf16", "fp16"]
Reduce = Literal["step", "round"]

BUILT_AXES = ("replicate", "shard")
BUILT_PRECISIONS = ("fp64", "fp32")


@dataclass(frozen=True)
class Plan:
    """Obeyed by apply/ to the letter; a person may edit it."""

    mesh: Mesh = field(default_factory=Mesh)
    micro_batch: int | tuple[int, ...] = 1
    """Samples that a data-parallel rank takes per round; a tuple where the shares are uneven."""
    rounds: int = 1
    precision: Precision = "fp32"
    reduce: Reduce = "step"
    """When gradients are summed over the ranks. After every round is slower, but without it a sharded plan keeps whole
    gradients between rounds."""

    def __post_init__(self) -> None:
        if isinstance(self.micro_batch, tuple):
            if len(self.micro_batch) != self.mesh.data:
                raise OnecurveError(
                    f"plan: {len(self.micro_batch)} shares for {self.mesh.data} data-parallel ranks "
                    "(replicate × shard); give one share per rank"
                )
            if len(set(self.micro_batch)) == 1:
                object.__setattr__(self, "micro_batch", self.micro_batch[0])
        smallest = min(self.micro_batch) if isinstance(self.micro_batch, tuple) else self.micro_batch
        if smallest < 1:
            raise OnecurveError(f"plan: a share of {smallest} samples; every rank takes at least 1 per round")
        if self.rounds < 1:
            raise OnecurveError(f"plan: rounds = {self.rounds}, at least 1 is needed")

    @property
    def round_size(self) -> int:
        if isinstance(self.micro_batch, tuple):
            return sum(self.micro_batch)
        return self.micro_batch * self.mesh.data

    @property
    def global_batch(self) -> int:
        return self.round_size * self.rounds

    def share(self, data_rank: int) -> tuple[int, int]:
        """The positions [begin, end) within each round that this data-parallel rank takes."""
        if isinstance(self.micro_batch, tuple):
            begin = sum(self.micro_batch[:data_rank])
            return begin, begin + self.micro_batch[data_rank]
        return data_rank * self.micro_batch, (data_rank + 1) * self.micro_batch

    def __str__(self) -> str:
        words = []
        mesh = "·".join(f"{axis}{degree}" for axis, degree in self.mesh.degrees.items() if degree > 1)
        if mesh:
            words.append(mesh)
        shares = (
            f"({','.join(map(str, self.micro_batch))})"
            if isinstance(self.micro_batch, tuple)
            else str(self.micro_batch)
        )
        words.append(f"mb{shares}" + (f"×{self.rounds}" if self.rounds > 1 else ""))
        words.append(self.precision)
        if self.reduce != "step":
            words.append(f"reduce={self.reduce}")
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> "Plan":
        """Read the short text form. A plain `x` may stand for `×` and a `.` or `*` for `·`."""
        degrees: dict[str, int] = {}
        micro_batch: int | tuple[int, ...] | None = None
        rounds, precision, reduce = 1, "fp32", "step"
        for word in text.split():
            if match := re.fullmatch(r"mb(\d+|\(\d+(?:,\d+)*\))(?:[×x](\d+))?", word):
                micro_batch = _shares(match[1])
                rounds = int(match[2] or 1)
            elif word in get_args(Precision):
                precision = word
            elif word.startswith("reduce="):
                reduce = word.removeprefix("reduce=")
                if reduce not in get_args(Reduce):
                    raise OnecurveError(f"plan {text!r}: reduce={reduce} (known: step, round)")
            else:
                degrees |= _degrees(word, text)
        if micro_batch is None:
            raise OnecurveError(f"plan {text!r}: no micro-batch; add mbN×ROUNDS, for example mb8×2")
        return Plan(Mesh(**degrees), micro_batch, rounds, cast(Precision, precision), cast(Reduce, reduce))


def default_plan(global_batch: int, ranks: int) -> Plan:
    """Every rank holds a whole copy and takes an equal share, in one round: what a user would start with."""
    if ranks > global_batch:
        raise OnecurveError(
            f"global_batch = {global_batch} cannot be split over {ranks} ranks; use at most {global_batch} ranks, "
            "or a larger global_batch"
        )
    return Plan(Mesh(replicate=ranks), split_evenly(global_batch, ranks))


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Shares that differ by at most one, the larger ones first."""
    small, larger = divmod(total, parts)
    return tuple(small + 1 if part < larger else small for part in range(parts))


def validate(plan: Plan, global_batch: int, cluster: Cluster) -> None:
    """Refuse a plan that this job on this cluster cannot obey, with the mend."""
    for axis, degree in plan.mesh.degrees.items():
        if degree > 1 and axis not in BUILT_AXES:
            raise OnecurveError(
                f"plan {plan}: the axis {axis!r} is not built yet; this version runs {' and '.join(BUILT_AXES)}"
            )
    if plan.precision not in BUILT_PRECISIONS:
        raise OnecurveError(f"plan {plan}: precision {plan.precision} is not built yet; use fp32")
    if plan.global_batch != global_batch:
        raise OnecurveError(
            f"plan {plan}: its shares make {plan.round_size} samples × {plan.rounds} rounds = {plan.global_batch} a "
            f"step, but the job's global_batch is {global_batch} ({_fitting(plan, global_batch)})"
        )
    if cluster.device != "cpu" and plan.mesh.size > cluster.devices:
        raise OnecurveError(
            f"plan {plan}: needs {plan.mesh.size} devices, here are {cluster.devices} of kind {cluster.device}; "
            "make the axes smaller"
        )


def _fitting(plan: Plan, global_batch: int) -> str:
    round_size, rest = divmod(global_batch, plan.rounds)
    if rest:
        divisors = [r for r in range(1, min(global_batch, 64) + 1) if global_batch % r == 0]
        return f"rounds must divide it: try {', '.join(map(str, divisors))}"
    if round_size < plan.mesh.data:
        return f"a round of {round_size} cannot feed {plan.mesh.data} data-parallel ranks: use fewer rounds or ranks"
    shares = split_evenly(round_size, plan.mesh.data)
    return f"try {Plan(plan.mesh, shares, plan.rounds, plan.precision, plan.reduce)}"


def _shares(text: str) -> int | tuple[int, ...]:
    if text.startswith("("):
        return tuple(int(part) for part in text[1:-1].split(","))
    return int(text)


def _degrees(word: str, text: str) -> dict[str, int]:
    degrees: dict[str, int] = {}
    for item in re.split(r"[·.*]", word):
        match = re.fullmatch(r"([a-z_]+)(\d+)", item)
        if not match:
            raise OnecurveError(
                f"plan {text!r}: cannot read {item!r}; a plan reads like 'replicate2·shard2 mb4×8 fp32'"
            )
        axis, degree = match[1], int(match[2])
        if axis not in AXES:
            raise OnecurveError(f"plan {text!r}: unknown axis {axis!r} ({nearest(axis, AXES)})")
        if axis in degrees:
            raise OnecurveError(f"plan {text!r}: the axis {axis!r} stands twice")
        degrees[axis] = degree
    return degrees
