"""The plan: plain data that says how a job runs on a cluster.

Its short text form round-trips, ones and defaults omitted: `replicate2·shard2 mb4×8 bf16`, uneven shares as
`mb(6,2)×8`, options behind: `zero2 reduce=round recompute=full compile`.
"""

import re
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_args

from onecurve.describe.convert import from_plain, nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import AXES, Mesh

Precision = Literal["fp64", "fp32", "bf16", "fp16"]
Reduce = Literal["step", "round"]
Sharding = Literal["zero3", "zero2"]
Recompute = Literal["none", "selective", "full"]
Compress = Literal["none", "bf16", "fp16"]
Schedule = Literal["1f1b", "gpipe", "interleaved", "zero-bubble"]


@dataclass(frozen=True)
class Plan:
    """Obeyed by apply/ to the letter; a person may edit it."""

    mesh: Mesh = field(default_factory=Mesh)
    micro_batch: int | tuple[int, ...] = 1
    """Samples that a data-parallel rank takes per round; a tuple where the shares are uneven."""
    rounds: int = 1
    precision: Precision = "fp32"
    """What is computed in; weights, gradients' sums and optimizer state stay in fp32 under bf16 and fp16."""
    reduce: Reduce = "step"
    """When gradients are summed over the ranks. After every round is slower, but without it a sharded plan keeps whole
    gradients between rounds."""
    sharding: Sharding = "zero3"
    """Whether a block's parameters are given up after forward and gathered again for backward (zero3), or kept."""
    recompute: Recompute = "none"
    """What is computed again in backward instead of kept: nothing, all but products and attention, or all."""
    compile: bool = False
    """torch.compile, block by block."""
    compress: Compress = "none"
    """What gradients are sent in. Changes the numbers."""
    channels_last: bool = False
    """Images in memory with channels innermost, which convolutions often like better."""
    threads: int = 0
    """Cores of a CPU rank; 0 is its equal part of the host's."""
    schedule: Schedule = "1f1b"
    """In which order the pipeline's stages take the rounds, forward and backward."""
    sequence: bool = False
    """Activations between the blocks cut along the sequence over the tensor axis, instead of whole on each rank."""
    layouts: dict[str, str] = field(default_factory=dict)
    """How parameters lie along the tensor axis: a pattern of names → a layout. Not part of the short form; where it is
    empty it is derived from the model."""
    stages: tuple[int, ...] = field(default_factory=tuple)
    """How many blocks each pipeline stage has; stage s is on pipeline rank s modulo `pipeline`. Not part of the short
    form; where it is empty it is derived from the model."""

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
        if self.threads < 0:
            raise OnecurveError(f"plan: threads = {self.threads}, 0 (an equal part of the cores) or more is needed")

    def replace_unchecked(self, **changes: Any) -> "Plan":
        """With these changes, not validated: a search makes a hundred thousand of them, and replace() takes ten times
        as long."""
        made = object.__new__(Plan)
        made.__dict__.update(self.__dict__, **changes)
        return made

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

    @property
    def stage_count(self) -> int:
        if self.stages:
            return len(self.stages)
        return self.mesh.pipeline * (2 if self.schedule == "interleaved" else 1)

    @property
    def changes_numerics(self) -> bool:
        """Whether the plan asks for other numbers than one device would compute in fp32."""
        return self.precision in ("bf16", "fp16") or self.compress != "none"

    def __str__(self) -> str:
        mesh = "·".join(f"{axis}{degree}" for axis, degree in self.mesh.degrees.items() if degree > 1)
        shares = str(self.micro_batch)
        if isinstance(self.micro_batch, tuple):
            shares = f"({','.join(map(str, self.micro_batch))})"
        micro_batch = f"mb{shares}" + (f"×{self.rounds}" if self.rounds > 1 else "")
        words = [mesh] if mesh else []
        words += [micro_batch, self.precision]
        for name, default in _OPTIONS.items():
            value = getattr(self, name)
            if value != default:
                words.append(_option_word(name, value))
        return " ".join(words)

    @staticmethod
    def parse(text: str) -> "Plan":
        """Read the short text form. A plain `x` may stand for `×` and a `.` or `*` for `·`."""
        degrees: dict[str, int] = {}
        found: dict[str, Any] = {}
        for word in text.split():
            if match := re.fullmatch(r"mb(\d+|\(\d+(?:,\d+)*\))(?:[×x](\d+))?", word):
                found |= {"micro_batch": _shares(match[1]), "rounds": int(match[2] or 1)}
            elif word in get_args(Precision):
                found["precision"] = word
            elif (option := _read_option(word)) is not None:
                found |= option
            else:
                degrees |= _degrees(word, text)
        if "micro_batch" not in found:
            raise OnecurveError(f"plan {text!r}: no micro-batch; add mbN×ROUNDS, for example mb8×2")
        return from_plain(Plan, {"mesh": degrees, **found}, f"plan {text!r}")


_OPTIONS: dict[str, Any] = {each.name: each.default for each in fields(Plan) if each.default is not MISSING}
for _named_otherwise in ("micro_batch", "rounds", "precision"):
    del _OPTIONS[_named_otherwise]


def _option_word(name: str, value: Any) -> str:
    """`zero2`, `compile`, `recompute=full`"""
    if name == "sharding":
        return str(value)
    return name if value is True else f"{name}={value}"


def _read_option(word: str) -> dict[str, Any] | None:
    if word in get_args(Sharding):
        return {"sharding": word}
    name, equals, value = word.partition("=")
    if isinstance(_OPTIONS.get(name), bool) and not equals:
        return {name: True}
    if name in _OPTIONS and equals:
        return {name: int(value) if value.isdigit() else value}
    if equals:
        raise OnecurveError(f"plan: unknown option {name!r} ({nearest(name, _OPTIONS)})")
    return None


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
