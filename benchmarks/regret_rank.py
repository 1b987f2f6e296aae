"""One rank of regret.py: probes its world, plans, and runs plans for real, all in one process."""

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
from onecurve.job.batch import MicroBatch
from onecurve.job.script import load_job
from onecurve.measure.cluster_probe import measure_cluster
from onecurve.model.deferred import defer_init
from onecurve.planner.completion import PlanCompleter
from onecurve.planner.job_costs import costs_of
from onecurve.planner.timing import time_model
from onecurve.planner.traced_model import TracedModel
from onecurve.predict.estimator import Estimator
from onecurve.runtime.assembly import assemble
from onecurve.search.branch_and_bound import BranchAndBound
from onecurve.search.space import Space
from onecurve.train.trainer import Trainer

_STEPS, _TURNS = 2, 3
"""Of each plan: so many steps, then the other plans, and again."""
_LOOKS = 5
"""At the machine's speed, before what is measured once, and after it."""
_COMPARED = 6
_PATIENCE = 1.5
"""Seconds: plans that are predicted to take longer for a step are left out of the sample. Over 100 Mbit/s some would
take minutes."""
_LIBC = ctypes.CDLL("libc.so.6")


@dataclass
class Case:
    """What a case has to say."""

    plans: list[dict[str, object]] = field(default_factory=list)
    chosen: str = ""
    best: str = ""
    regret: float = 0.0
    noise: float = 0.0
    default: str = ""
    default_over_chosen: float = 0.0
    uneven: float = 0.0


class Bench:
    def __init__(self, script: str, arguments: Sequence[str], count: int, precisions: Sequence[Precision]) -> None:
        self.world = World.from_environment() or World()
        self.device = local_device(self.world.local_rank)
        self.count, self.precisions = count, precisions
        self.job = load_job(Path(script), arguments)
        self.data = open_data(self.job)
        self.completer = PlanCompleter(self.job, self.data)
        self.meshes: dict[Mesh, ProcessMesh] = {}
        self.undisturbed: list[float] = []
        self.work = torch.ones(256, 256), torch.zeros(256, 256), torch.zeros(8), torch.zeros(1 << 21)

    def run(self) -> Case:
        lead = self.world.rank == 0
        # Before the world is joined: tracing pretends to be in another.
        costs = costs_of(TracedModel(self.job, self.data), self.precisions, 8) if lead else None
        self.world.join(self.device)
        barrier()
        looks = [self._look() for _ in range(_LOOKS)]
        cluster = measure_cluster(self.world, self.device, lambda _: None)
        looks += [self._look() for _ in range(_LOOKS)]
        self.undisturbed = _undisturbed(looks, cluster, self.world.local_size)
        timed = [self._timings(cluster, costs)]
        estimator = None
        if costs is not None:
            costs = replace(costs, read_seconds_per_sample=0.0)
            estimator = Estimator(cluster, replace(costs, timings=timed[0][0]))
        chosen, *plans = self._told(_candidates(estimator, self.count, self.job.global_batch, cluster))
        case = Case(chosen=str(chosen), default=str(plans[0]))
        built = [self._build(plan) for plan in plans]
        for _ in range(_TURNS):
            for each in built:
                self._steps(each, _STEPS)
            timed.append(self._timings(cluster, costs))
        if costs is not None:
            for each in built:
                # Others use the machine too: the plan is chosen by what was timed before, errors are those of the
                # prediction for the speed that the machine had beside the plan's steps.
                now = each.typical[1]
                timings = _typical([_slowed(found, now / beside) for found, beside in timed])
                slower = Estimator(_slowed_cluster(cluster, now), replace(costs, timings=timings))
                case.plans.append(self._row(each, slower))
                _show(case.plans[-1])
        fastest = min(built, key=lambda each: each.typical[0] / each.typical[1])
        self._compare(case, chosen, fastest, built, cluster)
        return case

    def _row(self, built: "Built", estimator: Estimator) -> dict[str, object]:
        predicted, seconds = estimator.memory(built.plan), estimator.seconds(built.plan)
        return {
            "plan": str(built.plan),
            "step": built.typical[0],
            "predicted": sum(seconds.values()),
            "slowness": built.typical[1],
            "seconds": seconds,
            "memory": built.used,
            "before": built.before,
            "predicted_memory": sum(predicted.values()) - predicted["overhead"] + built.before,
            "parts": predicted,
        }

    def _timings(self, cluster: Cluster, costs: JobCosts | None) -> tuple[tuple[Timing, ...], float]:
        """The first rank's, while the others rest; and how slow it was beside them."""
        looks = [self._look()[0] for _ in range(_LOOKS)]
        found: tuple[Timing, ...] = ()
        if costs is not None:
            deferred = defer_init(self.job.model, self.job.seed)
            found = time_model(self.job, self.data, deferred, self.device, cluster, costs, self.precisions)
        barrier()
        looks += [self._look()[0] for _ in range(_LOOKS)]
        return found, min(looks) / self.undisturbed[0]

    def _compare(self, case: Case, chosen: Plan, fastest: "Built", built: "Sequence[Built]", cluster: Cluster) -> None:
        """The chosen one, the fastest and the default in turn, again and again."""
        found = next((each for each in built if str(each.plan) == str(chosen)), None)
        compared = {"chosen": found or self._build(chosen), "best": fastest, "default": built[0]}
        if len(cluster.groups) > 1 and isinstance(chosen.micro_batch, tuple):
            compared["equal"] = self._build(
                replace(chosen, micro_batch=split_evenly(chosen.round_size, chosen.mesh.data))
            )
        turns: dict[str, list[float]] = {name: [] for name in compared}
        for _ in range(_COMPARED):
            for name, each in compared.items():
                turns[name].append(self._steps(each, _STEPS))
        typical = {name: statistics.median(found) for name, found in turns.items()}
        case.best = str(fastest.plan)
        if case.best != case.chosen:  # of one plan the difference is noise
            case.regret = typical["chosen"] / min(typical["chosen"], typical["best"]) - 1
        halves = [statistics.median(turns["chosen"][begin::2]) for begin in (0, 1)]
        case.noise = abs(halves[0] / halves[1] - 1)
        case.default_over_chosen = typical["default"] / typical["chosen"]
        if "equal" in compared:
            case.uneven = typical["equal"] / typical["chosen"]

    def _told(self, plans: Sequence[Plan]) -> list[Plan]:
        """The first rank's, on all."""
        text = all_gather_text(json.dumps([to_plain(plan) for plan in plans]) if self.world.rank == 0 else "")[0]
        return [from_plain(Plan, each, "plan") for each in json.loads(text)]

    def _build(self, plan: Plan) -> "Built":
        """Made ready, its first steps done: what they hold at most is the plan's memory."""
        if plan.mesh not in self.meshes:
            self.meshes[plan.mesh] = make_mesh(plan.mesh, self.world.rank, self.device.kind)
        mesh = self.meshes[plan.mesh]
        gc.collect()
        _LIBC.malloc_trim(0)
        before, used = resident_bytes(), 0
        Path("/proc/self/clear_refs").write_text("5")
        built = Built(plan)
        if mesh.member:
            self._settle(plan)
            resolved, deferred = self.completer.resolve(plan), defer_init(self.job.model, self.job.seed)
            built.trainer = assemble(self.job, resolved, mesh, self.device, self.data, deferred).trainer
            data_rank = plan.mesh.data_rank(self.world.rank)
            built.rounds = next(iter(self.data.batches(plan, data_rank, workers=0))).rounds
            for _ in range(2):
                built.trainer.step(0, built.rounds)
            used = _peak()
        every = [json.loads(text) for text in all_gather_text(json.dumps([used, before]))]
        built.used, built.before = max(every)
        return built

    def _settle(self, plan: Plan) -> None:
        hosts = self.world.size // self.world.local_size
        pin_to_cores(self.world.local_rank, max(1, plan.mesh.size // hosts), plan.threads)

    def _steps(self, built: "Built", count: int) -> float:
        """Seconds of a step, the same on all ranks: the median of some, after one that is not counted."""
        barrier()
        before, found = self._look(), [0.0]
        if built.trainer is not None:
            self._settle(built.plan)
            for _ in range(count + 1):
                start = time.perf_counter()
                built.trainer.step(0, built.rounds)
                found.append(time.perf_counter() - start)
            found = found[2:]
        mine = statistics.median(found)
        step = max(json.loads(text) for text in all_gather_text(json.dumps(mine)))
        built.seen.append(step)
        around = list(zip(before, self._look(), self.undisturbed, strict=True))[: built.plan.mesh.size]
        built.slowness.append(max((one + two) / 2 / least for one, two, least in around))
        return step

    def _look(self) -> list[float]:
        """Seconds of a piece of work that is always the same, on each rank; all do it at once, each on one core."""
        pin_to_cores(self.world.local_rank, self.world.local_size, 1)
        matrix, product, few, many = self.work
        barrier()
        begin = time.perf_counter()
        for _ in range(16):
            torch.mm(matrix, matrix, out=product)
            many.add_(1.0)
        for _ in range(2000):
            few.add_(1.0)
        taken = time.perf_counter() - begin
        pin_to_cores(0, 1, 0)
        return [json.loads(text) for text in all_gather_text(json.dumps(taken))]


@dataclass
class Built:
    plan: Plan
    trainer: Trainer | None = None
    rounds: Sequence[MicroBatch] = ()
    used: int = 0
    before: int = 0
    seen: list[float] = field(default_factory=list)
    slowness: list[float] = field(default_factory=list)
    """Of the slowest rank at work, in times an undisturbed one, beside what was seen."""

    @property
    def typical(self) -> tuple[float, float]:
        """Seconds of a step, and how slow the machine was then: of the turn in the middle, by what the step would have
        taken an undisturbed one."""
        turns = sorted(zip(self.seen, self.slowness, strict=True), key=lambda each: each[0] / each[1])
        return turns[(len(turns) - 1) // 2]


def _undisturbed(looks: Sequence[Sequence[float]], cluster: Cluster, on_each_host: int) -> list[float]:
    """What a look takes each rank at least: as little as it takes any in a group of hosts that are alike."""
    least = [min(found) for found in zip(*looks, strict=True)]
    known: list[float] = []
    for group in cluster.groups:
        ranks = group.count * on_each_host
        known += [min(least[len(known) : len(known) + ranks])] * ranks
    return known


def _slowed_cluster(cluster: Cluster, times: float) -> Cluster:
    """As it is while everything on its cores takes so many times as long. What a network carries stays."""
    groups = []
    for group in cluster.groups:
        device = replace(
            group.device,
            memory_bandwidth=group.device.memory_bandwidth / times,
            flops={name: rate / times for name, rate in group.device.flops.items()},
            matmul_rates={
                name: {n: rate / times for n, rate in each.items()} for name, each in group.device.matmul_rates.items()
            },
            op_seconds=group.device.op_seconds * times,
        )
        inside = replace(
            group.intra_host, latency=group.intra_host.latency * times, bandwidth=group.intra_host.bandwidth / times
        )
        network = replace(group.inter_host, latency=group.inter_host.latency * times)
        groups.append(replace(group, device=device, intra_host=inside, inter_host=network))
    return replace(cluster, groups=tuple(groups))


def _slowed(timed: Sequence[Timing], times: float) -> list[Timing]:
    return [replace(each, forward=each.forward * times, backward=each.backward * times) for each in timed]


def _typical(timed: Sequence[Sequence[Timing]]) -> tuple[Timing, ...]:
    return tuple(
        replace(
            same[0],
            forward=statistics.median(each.forward for each in same),
            backward=statistics.median(each.backward for each in same),
        )
        for same in zip(*timed, strict=True)
    )


def _candidates(estimator: Estimator | None, count: int, batch: int, cluster: Cluster) -> list[Plan]:
    """The chosen one first; then what a user would start, the best predicted, and a sample of the rest."""
    if estimator is None:
        return []
    space = Space(estimator)
    found = BranchAndBound(space).run().best
    assert found is not None
    layouts = dict(estimator.costs.layouts)
    every = [replace(plan, layouts=layouts if plan.mesh.tensor > 1 else {}) for plan in space.plans()]
    every = [plan for plan in every if sum(estimator.memory(plan).values()) <= estimator.available(plan)]
    every.sort(key=lambda plan: sum(estimator.seconds(plan).values()))
    best, rest = every[:8], [plan for plan in every[8:] if sum(estimator.seconds(plan).values()) < _PATIENCE]
    ranks = cluster.devices
    usual = default_plan(batch, ranks)
    chosen = replace(found.plan, layouts=layouts if found.plan.mesh.tensor > 1 else {})
    first = [usual, *(plan for plan in best if plan != usual)]
    others = [plan for plan in rest if plan != usual]
    return [chosen, *first, *random.Random(0).sample(others, min(len(others), count - len(first)))]


def _show(row: dict[str, object]) -> None:
    if os.environ.get("ONECURVE_SHOW"):
        ratio = row["predicted"] / row["step"]  # type: ignore[operator]
        memory = row["predicted_memory"] / row["memory"]  # type: ignore[operator]
        terms = {name: round(1000 * value, 1) for name, value in row["seconds"].items() if value > 1e-4}  # type: ignore[attr-defined]
        sizes = [round((row[name] - row["before"]) / 1e6) for name in ("memory", "predicted_memory")]  # type: ignore[operator]
        print(
            f"{row['plan']:<60} {1000 * row['step']:8.1f} ms  {ratio:5.2f}  memory {memory:5.2f} {sizes} {terms}",
            flush=True,
        )  # type: ignore[operator]


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM in /proc/self/status")


def main() -> None:
    asked = json.loads(sys.argv[1])
    case = Bench(asked["script"], asked["arguments"], asked["count"], asked["precisions"]).run()
    if int(os.environ.get("RANK", "0")) == 0:
        Path(asked["out"]).write_text(to_json(case))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
