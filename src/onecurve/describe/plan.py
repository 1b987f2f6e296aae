"""The plan: plain data that says how a job runs on a cluster.

A plan has a short text form that round-trips. It omits axes of degree 1 and default options:
`replicate2·shard2 mb4×8 bf16`. Uneven shares read `mb(6,2)×8`. Options follow: `zero2 reduce=round compile`.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal, get_args

from onecurve.describe.convert import from_plain, nearest
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import AXES, Mesh

Precision = Literal["fp64", "fp32", "bf16", "fp16"]
Reduce = Literal["step", "round"]
Sharding = Literal["zero3", "zero2"]
Recompute = Literal["none", "selective", "full"]
Compress = Literal["none", "bf16", "fp16"]
Schedule = Literal["1f1b", "gpipe", "interleaved", "zero-bubble"]
TablePlacement = Literal["replicated", "row_sharded", "served"]


@dataclass(frozen=True)
class Plan:
    """How a job is split over ranks. It is the content of a plan.toml, which a person may edit.

    Every plan has a short text form: `str(plan)` writes it and `Plan.parse` reads it. Wherever a plan is needed, the
    short form or the path of a plan.toml will do.

    Args:
        mesh: Number of ranks along each axis: `pipeline`, `replicate`, `shard`, `tensor`. Default: one rank.
        micro_batch: Samples per data-parallel rank and round; a tuple with one number per rank if the shares are
            uneven. Default: 1.
        rounds: Gradient-accumulation rounds per step. Default: 1.
        precision: Compute precision: `"fp64"`, `"fp32"`, `"bf16"` or `"fp16"`. Under bf16 and fp16 the weights,
            gradient sums and optimizer state stay in fp32. Default: `"fp32"`.
        reduce: When gradients are reduced over the ranks: once per `"step"`, or after every `"round"`. A sharded plan
            with several rounds keeps unsharded gradients between rounds unless it reduces after every round. Default:
            `"step"`.
        sharding: `"zero3"` frees a block's parameters after forward and all-gathers them again for backward; `"zero2"`
            keeps them until the end of backward. Default: `"zero3"`.
        recompute: Activation checkpointing per block: `"none"`; `"selective"` saves matrix products and attention and
            recomputes the rest; `"full"` saves only the block's input. Default: `"none"`.
        compile: Apply torch.compile to each block. Default: False.
        compress: Dtype in which gradients are communicated: `"none"`, `"bf16"` or `"fp16"`. Anything but `"none"`
            changes the numbers. Default: `"none"`.
        channels_last: Store images in the channels_last memory format. Default: False.
        threads: CPU cores per rank; 0 divides the host's cores evenly. Default: 0.
        schedule: Pipeline schedule: `"1f1b"`, `"gpipe"`, `"interleaved"` or `"zero-bubble"`. Default: `"1f1b"`.
        sequence: Sequence parallelism: activations between blocks are sharded along the sequence over the tensor axis.
            Default: False.
        layouts: Layout of each parameter along the tensor axis, by a pattern of names. Not part of the short form.
            Default: derived from the model.
        stages: Number of blocks in each pipeline stage; stage s runs on pipeline rank s modulo `pipeline`. Not part of
            the short form. Default: derived from the model.
        tables: Where the rows of the model's embedding tables are, by a pattern of their names: `"replicated"` (all
            rows on every rank), `"row_sharded"` (each row on one rank) or `"served"` (on row servers). In the short
            form: `tables=row_sharded`, or `tables=user:replicated,*:row_sharded`. Default: `served` if the job has
            `params`, otherwise `row_sharded`.

    Example::

        plan = oc.Plan.parse("replicate2·shard4 mb8×2 bf16")
        print(plan.mesh.size, "ranks,", plan.global_batch, "samples per step")  # 8 ranks, 128 samples per step
    """

    file_version: ClassVar[int] = 1

    mesh: Mesh = field(default_factory=Mesh)
    micro_batch: int | tuple[int, ...] = 1
    rounds: int = 1
    precision: Precision = "fp32"
    reduce: Reduce = "step"
    sharding: Sharding = "zero3"
    recompute: Recompute = "none"
    compile: bool = False
    compress: Compress = "none"
    channels_last: bool = False
    threads: int = 0
    schedule: Schedule = "1f1b"
    sequence: bool = False
    layouts: dict[str, str] = field(default_factory=dict)
    stages: tuple[int, ...] = field(default_factory=tuple)
    tables: dict[str, TablePlacement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.micro_batch, tuple):
            if len(self.micro_batch) != self.mesh.data:
                raise OnecurveError(
                    f"{len(self.micro_batch)} shares for {self.mesh.data} data-parallel ranks "
                    "(replicate × shard); give one share per rank"
                )
            if len(set(self.micro_batch)) == 1:
                object.__setattr__(self, "micro_batch", self.micro_batch[0])
        smallest = min(self.micro_batch) if isinstance(self.micro_batch, tuple) else self.micro_batch
        if smallest < 1:
            raise OnecurveError(f"every data-parallel rank needs at least 1 sample per round, not {smallest}")
        if self.rounds < 1:
            raise OnecurveError(f"rounds must be at least 1, not {self.rounds}")
        if self.threads < 0:
            raise OnecurveError(f"threads must be 0 (divide the cores evenly) or more, not {self.threads}")

    def replace_unchecked(self, **changes: Any) -> "Plan":
        """Return a copy with these changes, without validation. The search makes hundreds of thousands of plans, and
        dataclasses.replace() takes ten times as long."""
        plan = object.__new__(Plan)
        plan.__dict__.update(self.__dict__, **changes)
        return plan

    @property
    def round_size(self) -> int:
        """Samples per round, over all data-parallel ranks."""
        if isinstance(self.micro_batch, tuple):
            return sum(self.micro_batch)
        return self.micro_batch * self.mesh.data

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each data-parallel rank per round."""
        return self.micro_batch if isinstance(self.micro_batch, tuple) else (self.micro_batch,) * self.mesh.data

    @property
    def global_batch(self) -> int:
        """Samples per step, over all data-parallel ranks and rounds."""
        return self.round_size * self.rounds

    def share(self, data_rank: int) -> tuple[int, int]:
        """Return the positions [begin, end) within each round that belong to this data-parallel rank."""
        if isinstance(self.micro_batch, tuple):
            begin = sum(self.micro_batch[:data_rank])
            return begin, begin + self.micro_batch[data_rank]
        return data_rank * self.micro_batch, (data_rank + 1) * self.micro_batch

    @property
    def stage_count(self) -> int:
        """Number of pipeline stages."""
        if self.stages:
            return len(self.stages)
        return self.mesh.pipeline * (2 if self.schedule == "interleaved" else 1)

    @property
    def changes_numerics(self) -> bool:
        """True if the plan asks for other numbers than one device computes in fp32."""
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
        if self.tables:
            words.append(f"tables={_tables_text(self.tables)}")
        return " ".join(words)

    @property
    def is_served(self) -> bool:
        """True if the rows of some embedding tables are on servers."""
        return "served" in self.tables.values()

    def table_placement(self, table: str) -> TablePlacement:
        """Where the rows of a table are: as the first pattern says that matches its name."""
        found = (placement for pattern, placement in self.tables.items() if fnmatchcase(table, pattern))
        return next(found, "row_sharded")

    @staticmethod
    def parse(text: str) -> "Plan":
        """Read the short text form. `x` may replace `×`, and `.` or `*` may replace `·`."""
        degrees: dict[str, int] = {}
        fields_given: dict[str, Any] = {}
        for word in text.split():
            if match := re.fullmatch(r"mb(\d+|\(\d+(?:,\d+)*\))(?:[×x](\d+))?", word):
                given: dict[str, Any] = {"micro_batch": _shares(match[1]), "rounds": int(match[2] or 1)}
            elif word in get_args(Precision):
                given = {"precision": word}
            elif word.startswith("tables="):
                given = {"tables": _read_tables(word.removeprefix("tables="), text)}
            else:
                given = _read_option(word, text) or {}
            if given.keys() & fields_given.keys():
                raise OnecurveError(f"plan {text!r}: {word!r} repeats what another word says; give one of them")
            fields_given |= given
            if not given:
                _add_degrees(degrees, word, text)
        if "micro_batch" not in fields_given:
            raise OnecurveError(f"plan {text!r}: the micro-batch is missing; add mbN×ROUNDS, for example mb8×2")
        return from_plain(Plan, {"mesh": degrees, **fields_given}, f"plan {text!r}")


_OPTIONS: dict[str, Any] = {option.name: option.default for option in fields(Plan) if option.default is not MISSING}
for _own_syntax in ("micro_batch", "rounds", "precision"):
    del _OPTIONS[_own_syntax]


def _option_word(name: str, value: Any) -> str:
    """`zero2`, `compile`, `recompute=full`"""
    if name == "sharding":
        return str(value)
    return name if value is True else f"{name}={value}"


def _read_option(word: str, text: str) -> dict[str, Any] | None:
    if word in get_args(Sharding):
        return {"sharding": word}
    name, equals, value = word.partition("=")
    if isinstance(_OPTIONS.get(name), bool) and not equals:
        return {name: True}
    if name in _OPTIONS and equals:
        return {name: int(value) if value.isdigit() else value}
    if equals:
        raise OnecurveError(f"plan {text!r}: unknown option {name!r} ({nearest(name, _OPTIONS)})")
    return None


def _tables_text(tables: Mapping[str, TablePlacement]) -> str:
    """`row_sharded`, or `user:replicated,*:row_sharded`"""
    if list(tables) == ["*"]:
        return tables["*"]
    return ",".join(f"{pattern}:{placement}" for pattern, placement in tables.items())


def _read_tables(placements: str, text: str) -> dict[str, str]:
    tables = {}
    for part in placements.split(","):
        pattern, _, placement = part.rpartition(":")
        if placement not in get_args(TablePlacement):
            known = " or ".join(get_args(TablePlacement))
            raise OnecurveError(f"plan {text!r}: {placement!r} is not a placement of rows; use {known}")
        tables[pattern or "*"] = placement
    return tables


def default_plan(global_batch: int, ranks: int) -> Plan:
    """Return the plan of plain data parallelism: a replica on every rank, equal shares, one round."""
    if ranks > global_batch:
        raise OnecurveError(
            f"global_batch = {global_batch} cannot be split over {ranks} ranks; use at most {global_batch} ranks or a "
            "larger global_batch"
        )
    return Plan(Mesh(replicate=ranks), micro_batch=split_evenly(global_batch, ranks))


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Return shares that differ by at most one, the larger ones first."""
    small, larger = divmod(total, parts)
    return tuple(small + 1 if part < larger else small for part in range(parts))


def _shares(text: str) -> int | tuple[int, ...]:
    if text.startswith("("):
        return tuple(int(part) for part in text[1:-1].split(","))
    return int(text)


def _add_degrees(degrees: dict[str, int], word: str, text: str) -> None:
    for item in re.split(r"[·.*]", word):
        match = re.fullmatch(r"([a-z_]+)(\d+)", item)
        if not match:
            raise OnecurveError(
                f"plan {text!r}: cannot read {item!r}; a plan looks like 'replicate2·shard2 mb4×8 fp32', or like "
                "'replicate2 mb(5,3)' with uneven shares"
            )
        axis, degree = match[1], int(match[2])
        if axis not in AXES:
            known = [*AXES, *get_args(Precision)]
            raise OnecurveError(f"plan {text!r}: {item!r} is no axis, precision or option ({nearest(axis, known)})")
        if axis in degrees:
            raise OnecurveError(f"plan {text!r}: the axis {axis!r} appears twice")
        degrees[axis] = degree
