"""One rank of regret.py: probes the cluster, chooses a plan and runs many plans, all in one process.

Other programs may use the machine. So a fixed piece of work (the speed test) is timed next to every measurement; its
time over the shortest time seen is the slowness of the machine at that moment.
"""

import ctypes
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from machine_speed import idle_seconds, slowed_estimator

from onecurve.apply.process_mesh import ProcessMesh, make_mesh
from onecurve.data.training_data import open_data
from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_plain, to_json, to_plain
from onecurve.describe.costs import JobCosts, Timing
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision, default_plan, split_evenly
from onecurve.device.collectives import all_gather_text, barrier
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import local_device, resident_bytes
from onecurve.device.world import World
from onecurve.estimate.estimator import Estimator
from onecurve.job.batch import MicroBatch
from onecurve.job.script import load_job
from onecurve.measure.cluster_probe import measure_cluster
from onecurve.model.deferred import defer_init
from onecurve.params.row_timing import time_rows
from onecurve.planner.advisor import estimate_with_layouts
from onecurve.planner.completion import PlanCompleter
from onecurve.planner.job_costs import costs_of
from onecurve.planner.table_sampling import sample_tables
from onecurve.planner.timing import time_model
from onecurve.planner.traced_model import TracedModel
from onecurve.runtime.assembly import assemble
from onecurve.search.branch_and_bound import BranchAndBound
from onecurve.search.space import Space
from onecurve.train.trainer import Trainer

_STEPS = 2
"""Counted steps of a plan per turn."""
_TURNS = 3
"""Turns of each plan; the plans alternate."""
_SPEED_TESTS = 5
"""Speed tests before and after a measurement that is made only once."""
_FINAL_TURNS = 6
"""Turns of the final comparison between the chosen plan, the fastest plan and the default."""
_MAX_STEP_SECONDS = 1.5
"""Plans with a longer predicted step are left out of the sample; over 100 Mbit/s some would take minutes."""
_COUNTED_AT_ONCE = 256
"""Samples of a forward in which the ids of embedding tables are counted."""
_LIBC = ctypes.CDLL("libc.so.6")


@dataclass
class Case:
    """The results of one case; written as JSON."""

    plans: list[dict[str, object]] = field(default_factory=list)
    """Measured and predicted values of each plan."""
    chosen: str = ""
    """The plan that the planner chose."""
    best: str = ""
    """The plan that was measured to be the fastest."""
    regret: float = 0.0
    """Step time of the chosen plan over that of the best plan, minus 1."""
    noise: float = 0.0
    """Relative difference between two halves of the measurements of the chosen plan."""
    default: str = ""
    """The plan that a user would start without a planner."""
    default_over_chosen: float = 0.0
    """Step time of the default plan over that of the chosen plan."""
    uneven: float = 0.0
    """Step time with equal shares over that with the chosen, uneven shares; 0 if the chosen shares are equal."""


class Bench:
    """One case, as seen by one rank."""

    def __init__(self, script: str, arguments: Sequence[str], count: int, precisions: Sequence[Precision]) -> None:
        self.world = World.from_environment() or World()
        self.device = local_device(self.world.local_rank)
        self.count, self.precisions = count, precisions
        self.job = load_job(Path(script), arguments)
        self.data = open_data(self.job)
        self.completer = _Completer(self.job, self.data)
        self.meshes: dict[Mesh, ProcessMesh] = {}
        self.idle_seconds: list[float] = []  # for each rank, the seconds of a speed test on an idle machine
        self.speed_test_tensors = torch.ones(256, 256), torch.zeros(256, 256), torch.zeros(8), torch.zeros(1 << 21)

    def run(self) -> Case:
        # The model is traced before this rank joins the others, because tracing uses a fake process group.
        costs = self._costs() if self.world.rank == 0 else None
        self.world.join(self.device)
        barrier()
        speed_tests = [self._speed_test() for _ in range(_SPEED_TESTS)]
        cluster = measure_cluster(self.world, self.device, lambda _: None)
        speed_tests += [self._speed_test() for _ in range(_SPEED_TESTS)]
        self.idle_seconds = idle_seconds(speed_tests, cluster, self.world.local_size)
        timings = [self._timings(cluster, costs)]
        estimator = None
        if costs is not None:
            costs = replace(costs, read_seconds_per_sample=0.0)
            estimator = Estimator(cluster, replace(costs, timings=timings[0][0]))
        chosen, *plans = self._broadcast(_candidates(estimator, self.count, self.job.global_batch, cluster))
        case = Case(chosen=str(chosen), default=str(plans[0]))
        measured = [self._build(plan) for plan in plans]
        for _ in range(_TURNS):
            for plan in measured:
                self._steps(plan, _STEPS)
            timings.append(self._timings(cluster, costs))
        if costs is not None:
            for plan in measured:
                case.plans.append(self._row(plan, slowed_estimator(plan.typical[1], timings, cluster, costs)))
                _show(case.plans[-1])
        fastest = min(measured, key=lambda plan: plan.typical[0] / plan.typical[1])
        self._compare(case, chosen, fastest, measured, cluster)
        return case

    def _costs(self) -> JobCosts:
        costs = costs_of(TracedModel(self.job, self.data), self.precisions, 8)
        if not self.completer.has_tables:
            return costs
        return replace(costs, tables=sample_tables(self.job, self.data, time_rows, _COUNTED_AT_ONCE))

    def _row(self, measured: "MeasuredPlan", estimator: Estimator) -> dict[str, object]:
        memory, seconds = estimator.memory(measured.plan), estimator.seconds(measured.plan)
        return {
            "plan": str(measured.plan),
            "step": measured.typical[0],
            "predicted": sum(seconds.values()),
            "slowness": measured.typical[1],
            "seconds": seconds,
            "memory": measured.peak_bytes,
            "before": measured.bytes_before,
            "predicted_memory": sum(memory.values()) - memory["overhead"] + measured.bytes_before,
            "parts": memory,
        }

    def _timings(self, cluster: Cluster, costs: JobCosts | None) -> tuple[tuple[Timing, ...], float]:
        """Time the model on rank 0 while the other ranks wait. Return the timings and the slowness of rank 0."""
        speed_tests = [self._speed_test()[0] for _ in range(_SPEED_TESTS)]
        timings: tuple[Timing, ...] = ()
        if costs is not None:
            deferred = defer_init(self.job.model, self.job.seed)
            timings = time_model(self.job, self.data, deferred, self.device, cluster, costs, self.precisions)
        barrier()
        speed_tests += [self._speed_test()[0] for _ in range(_SPEED_TESTS)]
        return timings, min(speed_tests) / self.idle_seconds[0]

    def _compare(
        self,
        case: Case,
        chosen: Plan,
        fastest: "MeasuredPlan",
        measured: "Sequence[MeasuredPlan]",
        cluster: Cluster,
    ) -> None:
        """Measure the chosen plan, the fastest and the default alternately; write the results to the case."""
        chosen_plan = next((plan for plan in measured if str(plan.plan) == str(chosen)), None)
        compared = {"chosen": chosen_plan or self._build(chosen), "best": fastest, "default": measured[0]}
        if len(cluster.groups) > 1 and isinstance(chosen.micro_batch, tuple):
            equal_shares = split_evenly(chosen.round_size, chosen.mesh.data)
            compared["equal"] = self._build(replace(chosen, micro_batch=equal_shares))
        turns: dict[str, list[float]] = {name: [] for name in compared}
        for _ in range(_FINAL_TURNS):
            for name, plan in compared.items():
                turns[name].append(self._steps(plan, _STEPS))
        typical = {name: statistics.median(seconds) for name, seconds in turns.items()}
        case.best = str(fastest.plan)
        if case.best != case.chosen:  # if they are the same plan, any difference is noise
            case.regret = typical["chosen"] / min(typical["chosen"], typical["best"]) - 1
        halves = [statistics.median(turns["chosen"][begin::2]) for begin in (0, 1)]
        case.noise = abs(halves[0] / halves[1] - 1)
        case.default_over_chosen = typical["default"] / typical["chosen"]
        if "equal" in compared:
            case.uneven = typical["equal"] / typical["chosen"]

    def _broadcast(self, plans: Sequence[Plan]) -> list[Plan]:
        """Return the plans of rank 0 on all ranks."""
        text = all_gather_text(json.dumps([to_plain(plan) for plan in plans]) if self.world.rank == 0 else "")[0]
        return [from_plain(Plan, fields, "plan") for fields in json.loads(text)]

    def _build(self, plan: Plan) -> "MeasuredPlan":
        """Build the plan's trainer and run two steps, whose peak is the memory of the plan."""
        if plan.mesh not in self.meshes:
            self.meshes[plan.mesh] = make_mesh(plan.mesh, self.world.rank, self.device.kind)
        mesh = self.meshes[plan.mesh]
        gc.collect()
        _LIBC.malloc_trim(0)
        bytes_before, peak_bytes = resident_bytes(), 0
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak (VmHWM)
        measured = MeasuredPlan(plan)
        if mesh.member:
            self._pin(plan)
            resolved, deferred = self.completer.resolve(plan), defer_init(self.job.model, self.job.seed)
            measured.trainer = assemble(self.job, resolved, mesh, self.device, self.data, deferred).trainer
            data_rank = plan.mesh.data_rank(self.world.rank)
            measured.rounds = next(iter(self.data.batches(plan, data_rank, workers=0))).rounds
            for _ in range(2):
                measured.trainer.step(1, measured.rounds)
            peak_bytes = _peak_resident_bytes()
        by_rank = [json.loads(text) for text in all_gather_text(json.dumps([peak_bytes, bytes_before]))]
        measured.peak_bytes, measured.bytes_before = max(by_rank)
        return measured

    def _pin(self, plan: Plan) -> None:
        hosts = self.world.size // self.world.local_size
        pin_to_cores(self.world.local_rank, max(1, plan.mesh.size // hosts), plan.threads)

    def _steps(self, measured: "MeasuredPlan", count: int) -> float:
        """Run one uncounted step and `count` counted ones. Return the median seconds of the slowest rank."""
        barrier()
        before, seconds = self._speed_test(), [0.0]
        if measured.trainer is not None:
            self._pin(measured.plan)
            for _ in range(count + 1):
                start = time.perf_counter()
                measured.trainer.step(1, measured.rounds)
                seconds.append(time.perf_counter() - start)
            seconds = seconds[2:]
        own_median = statistics.median(seconds)
        step = max(json.loads(text) for text in all_gather_text(json.dumps(own_median)))
        measured.step_seconds.append(step)
        ranks = list(zip(before, self._speed_test(), self.idle_seconds, strict=True))[: measured.plan.mesh.size]
        measured.slowness.append(max((first + second) / 2 / idle for first, second, idle in ranks))
        return step

    def _speed_test(self) -> list[float]:
        """Return the seconds of a fixed piece of work for each rank; all ranks run it at once, each on one core."""
        pin_to_cores(self.world.local_rank, self.world.local_size, 1)
        matrix, product, small, large = self.speed_test_tensors
        barrier()
        begin = time.perf_counter()
        for _ in range(16):
            torch.mm(matrix, matrix, out=product)
            large.add_(1.0)
        for _ in range(2000):
            small.add_(1.0)
        seconds = time.perf_counter() - begin
        pin_to_cores(0, 1, 0)
        return [json.loads(text) for text in all_gather_text(json.dumps(seconds))]


class _Completer(PlanCompleter):
    def _try_split(self, plan: Plan) -> None:
        """Plans are built in a process group, in which no fake one can be made to try them. They really run here."""


@dataclass
class MeasuredPlan:
    """A plan that is ready to train, and its measurements."""

    plan: Plan
    trainer: Trainer | None = None
    """None on a rank that the plan does not use."""
    rounds: Sequence[MicroBatch] = ()
    """The micro-batches of one step; every step uses the same."""
    peak_bytes: int = 0
    """Peak memory of the process, on the rank with the highest peak."""
    bytes_before: int = 0
    """Memory of the same process before the plan was built."""
    step_seconds: list[float] = field(default_factory=list)
    """Seconds per step, one value per turn."""
    slowness: list[float] = field(default_factory=list)
    """Slowness of the slowest rank that the plan uses, one value per turn."""

    @property
    def typical(self) -> tuple[float, float]:
        """Seconds per step and slowness of the median turn; turns are ordered by seconds over slowness."""
        turns = sorted(zip(self.step_seconds, self.slowness, strict=True), key=lambda turn: turn[0] / turn[1])
        return turns[(len(turns) - 1) // 2]


def _candidates(estimator: Estimator | None, count: int, batch: int, cluster: Cluster) -> list[Plan]:
    """Return the chosen plan and the plans to measure: the default, it, the 8 best predicted, some others.

    Return no plans if there is no estimator, as on all ranks but the first.
    """
    if estimator is None:
        return []
    space = Space(estimator)
    candidate = BranchAndBound(space).run().chosen
    assert candidate is not None

    def complete(plan: Plan) -> Plan:
        return estimate_with_layouts(estimator, plan).plan

    chosen, plans = complete(candidate.plan), [complete(plan) for plan in space.plans()]
    plans = [plan for plan in plans if sum(estimator.memory(plan).values()) <= estimator.available(plan)]
    plans.sort(key=lambda plan: sum(estimator.seconds(plan).values()))
    rest = [plan for plan in plans[8:] if sum(estimator.seconds(plan).values()) < _MAX_STEP_SECONDS]
    default = complete(default_plan(batch, cluster.devices))
    best = [plan for plan in plans[:8] if plan not in (default, chosen)]
    first = [default, *([chosen] if chosen != default else []), *best]
    others = [plan for plan in rest if plan not in (default, chosen)]
    return [chosen, *first, *random.Random(0).sample(others, min(len(others), count - len(first)))]


def _show(row: dict[str, object]) -> None:
    """Print the results of a plan if ONECURVE_SHOW is set; sizes are in MB above the memory before the plan."""
    if os.environ.get("ONECURVE_SHOW"):
        ratio = row["predicted"] / row["step"]  # type: ignore[operator]
        memory = row["predicted_memory"] / row["memory"]  # type: ignore[operator]
        terms = {name: round(1000 * value, 1) for name, value in row["seconds"].items() if value > 1e-4}  # type: ignore[attr-defined]
        sizes = [round((row[name] - row["before"]) / 1e6) for name in ("memory", "predicted_memory")]  # type: ignore[operator]
        print(
            f"{row['plan']:<60} {1000 * row['step']:8.1f} ms  {ratio:5.2f}  memory {memory:5.2f} {sizes} {terms}",
            flush=True,
        )  # type: ignore[operator]


def _peak_resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM in /proc/self/status")


def main() -> None:
    settings = json.loads(sys.argv[1])
    case = Bench(settings["script"], settings["arguments"], settings["count"], settings["precisions"]).run()
    if int(os.environ.get("RANK", "0")) == 0:
        Path(settings["out"]).write_text(to_json(case))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
