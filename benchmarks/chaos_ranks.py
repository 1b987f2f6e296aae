"""The scenarios of chaos.py on one host: ranks that are killed, stopped, slow or out of memory."""

import argparse
import os
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from chaos_lab import JOB, PLANS, STEPS, TOLERANCE, Found, Lab, causes, difference, judge, say
from safetensors.numpy import load_file
from watched_run import PATIENCE, WatchedRun, children

from onecurve.describe.plan import Plan

_FORMING_SECONDS = 0.2
"""A generation on one host is formed in about this time."""
_GENERATIONS, _LOOKS = 4, 10
"""How many are looked at, at the beginning and at the end, and how often each."""
_MOST_FILES = {"onecurve-snapshot": 8, "/dev/shm/torch": 16}
"""The most descriptors of a rank: snapshots while one generation follows another, and batches on their way."""


def kill(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    for number in range(chosen.count):
        plan = PLANS[number % len(PLANS)]
        expected = lab.weights(plan)
        with lab.start(plan) as run:
            at = draw.randrange(2, STEPS - 10)
            started, recovered = _signal_one(run, draw, at, signal.SIGKILL)
            status = run.end()
            judge(run, found, expected, status)
            found.starts.append(started)
            found.recoveries += [recovered] if recovered is not None else []
            took = "lost" if recovered is None else f"{recovered:.2f} s"
            say(f"{number + 1}/{chosen.count} {plan}: step {at}, status {status}, {took} {causes(run)}")
            if status != 0:
                say(run.output())
        if chosen.peer == "torchrun":
            _kill_under_torchrun(lab, found, plan, at)


def _kill_under_torchrun(lab: Lab, found: Found, plan: str, at: int) -> None:
    """The same fault, if torchrun restarts the ranks; they continue from a checkpoint."""
    peer = found.more.setdefault("torchrun", {"runs": 0, "finished": 0, "exact": 0, "recoveries": []})
    ranks = Plan.parse(plan).mesh.size
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "3"]
    launcher += ["--nproc-per-node", str(ranks)]
    with lab.start(plan, STEPS, *JOB, "every=10", launcher=launcher) as run:
        run.wait_for_step(1, at)
        os.kill(children(run.process.pid)[-1], signal.SIGKILL)
        killed, known = time.time(), len(run.records.steps(1))
        while run.process.poll() is None and len(run.records.steps(1)) <= known + 1 and time.time() < killed + PATIENCE:
            time.sleep(0.005)
        took = time.time() - killed
        peer["runs"] += 1
        status = run.end(PATIENCE)
        if status == 0:
            peer["finished"] += 1
            peer["recoveries"].append(round(took, 2))
            peer["exact"] += (run.folder / "weights.safetensors").read_bytes() == lab.weights(plan)
        say(f"    torchrun: status {status}, {took:.2f} s")


def _signal_one(run: WatchedRun, draw: random.Random, at: int, number: int) -> tuple[float, float | None]:
    """Send a signal to a rank at a step; return the seconds of the start, and those until the next step is done."""
    first = run.wait_for_step(1, 1)
    if first is None or run.wait_for_step(1, at) is None:
        raise SystemExit(f"the run has ended too soon\n{run.output()}")
    os.kill(draw.choice(run.ranks()), number)
    killed = time.time()
    after = run.wait_for_step(2, 1)
    return first - run.started, None if after is None else after - killed


def again(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    """A rank is killed, and while the next generation is formed, another one."""
    for number in range(chosen.count):
        plan = PLANS[number % len(PLANS)]
        expected = lab.weights(plan)
        with lab.start(plan) as run:
            run.wait_for_step(1, draw.randrange(2, STEPS - 10))
            first, second = draw.sample(run.ranks(), 2)
            os.kill(first, signal.SIGKILL)
            killed, delay = time.time(), draw.uniform(0.0, _FORMING_SECONDS)
            time.sleep(delay)
            os.kill(second, signal.SIGKILL)
            status = run.end()
            judge(run, found, expected, status)
            say(
                f"{number + 1}/{chosen.count} {plan}: after {delay:.3f} s, status {status} {time.time() - killed:.1f} s"
            )
            if status != 0:
                say(run.output())


def stop(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    found.named, found.more = 0, {"max_named_s": 0.0}
    for number in range(chosen.count):
        plan = PLANS[number % len(PLANS)]
        expected = lab.weights(plan)
        with lab.start(plan) as run:
            started, recovered = _signal_one(run, draw, draw.randrange(40, STEPS - 40), signal.SIGSTOP)
            judge(run, found, expected, run.end())
            found.starts.append(started)
            record = next((record for record in run.records.all() if record.get("why", "start") != "start"), None)
            if record is None or recovered is None:
                say(f"{number + 1}/{chosen.count} {plan}: {run.output()}")
                continue
            found.recoveries.append(recovered)
            found.named += bool(re.search(r"lost rank \d+ on \S+ \(stopped for .* s, in .+:\d+", record["why"]))
            named = recovered - sum(record["seconds"].values())
            found.more["max_named_s"] = max(found.more["max_named_s"], named)
            say(f"{number + 1}/{chosen.count} {plan}: {record['why']}, named after {named:.1f} s, {recovered:.1f} s")


def generations(lab: Lab, found: Found, _: random.Random, chosen: argparse.Namespace) -> None:
    with lab.start("shard2 mb4", steps=1_000_000) as run:
        run.wait_for_step(1, 2)
        survivor, victim = run.ranks()[:2]
        resources: list[tuple[int, ...]] = []
        for generation in range(1, chosen.count + 1):
            os.kill(victim, signal.SIGKILL)
            killed = time.time()
            after = run.wait_for_step(generation + 1, 1)
            if after is None:
                raise SystemExit(f"generation {generation + 1} has not begun\n{run.output()}")
            found.recoveries.append(after - killed)
            # Three failures at the same step would end the run.
            run.wait_for_step(generation + 1, max(run.records.steps(generation)) + 2)
            resources.append(least_resources(survivor))
            (victim,) = (pid for pid in run.ranks() if pid != survivor)
            say(f"{generation}/{chosen.count}: {after - killed:.2f} s, {resources[-1]}")
        run.process.send_signal(signal.SIGTERM)
        found.runs, found.finished = 1, int(run.end() == 75)
    first, last = (least(part) for part in (resources[2 : 2 + _GENERATIONS], resources[-_GENERATIONS:]))
    found.more["same_resources"] = first[:2] == last[:2]
    found.memory_ratio = resources[-1][2] / resources[1 + _GENERATIONS][2]


def least_resources(pid: int) -> tuple[int, ...]:
    """The least of several looks: batches on their way from the loader take descriptors too."""
    looks = []
    for _ in range(_LOOKS):
        looks.append(resources_of(pid))
        time.sleep(0.02)
    return least(looks)


def least(resources: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(min(column) for column in zip(*resources, strict=True))


def resources_of(pid: int) -> tuple[int, int, int]:
    """Open files, threads, and resident memory in bytes."""
    process = Path(f"/proc/{pid}")
    threads = len(list((process / "task").iterdir()))
    return _open_files(process), threads, int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_files(process: Path) -> int:
    """Files that come and go count as the most of them that are right: on a busy machine, some stay for long."""
    targets = []
    for descriptor in (process / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(descriptor))
    coming_and_going = {name: sum(name in target for target in targets) for name in _MOST_FILES}
    lasting = len(targets) - sum(coming_and_going.values())
    return lasting + sum(max(_MOST_FILES[name], count) for name, count in coming_and_going.items())


def storm(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    with lab.start("replicate2 mb4", steps=10_000_000) as run:
        begin = run.wait_for_step(1, 1)
        assert begin is not None, run.output()
        end, generation = begin + 60 * chosen.minutes, 1
        while time.time() + chosen.every < end:
            time.sleep(chosen.every)
            os.kill(draw.choice(run.ranks()), signal.SIGKILL)
            killed = time.time()
            generation += 1
            after = run.wait_for_step(generation, 1)
            if after is None:
                raise SystemExit(f"generation {generation} has not begun\n{run.output()}")
            found.recoveries.append(after - killed)
            say(f"{after - begin:.0f} s: {after - killed:.2f} s {causes(run, generation)}")
        time.sleep(max(0.0, end - time.time()))
        steps = {record["step"]: record for record in run.records.all() if record["kind"] == "step"}
        wall = time.time() - begin
        run.process.send_signal(signal.SIGTERM)
        found.runs, found.finished = 1, int(run.end() == 75)
        counted = sum(sum(record["seconds"].values()) for step, record in steps.items() if step > 1)
        found.effective_time = counted / wall


def slow(lab: Lab, found: Found, _: random.Random, chosen: argparse.Namespace) -> None:
    found.named, found.step_ratio, found.more = 0, 0.0, {"max_named_steps": 0}
    for number in range(chosen.count):
        with lab.start("replicate2 mb8", 1_000_000, "width=256", "batch=16") as run, quota("cpu") as group:
            run.wait_for_step(1, 20)
            at = max(run.records.steps(1))
            (group / "cpu.cfs_quota_us").write_text("25000")  # of a period of 100,000
            group.joinpath("cgroup.procs").write_text(str(run.ranks()[1]))
            run.wait_for_output("rank 1 on .* is slow: ")
            named = max(run.records.steps(1)) - at
            if run.wait_for_step(2, 1) is None or run.wait_for_step(2, max(run.records.steps(1)) + 20) is None:
                raise SystemExit(f"nothing was changed\n{run.output()}")
            run.process.send_signal(signal.SIGTERM)
            found.runs, found.finished = found.runs + 1, found.finished + int(run.end() == 75)
            record = run.record()
            found.named += record["why"].startswith("rank 1 on ")
            found.more["max_named_steps"] = max(found.more["max_named_steps"], named)
            slow_steps = len(run.records.steps(1)) - at - 2
            before, after = step_seconds(run, 1)[-slow_steps:], step_seconds(run, 2)[2:]
            ratio = statistics.median(after) / statistics.median(before)
            found.step_ratio = max(found.step_ratio, ratio)
            say(f"{number + 1}/{chosen.count}: {record['why']}, after {named} steps; {ratio:.2f}, {record['plan']}")


def step_seconds(run: WatchedRun, generation: int) -> list[float]:
    steps = [record for record in run.records.all() if record["kind"] == "step"]
    records = [record for record in steps if record["generation"] == generation]
    return [sum(record["seconds"].values()) for record in records]


@contextmanager
def quota(controller: str) -> Iterator[Path]:
    """A control group of its own, of a controller of cgroup version 1."""
    group = Path(f"/sys/fs/cgroup/{controller}/onecurve-chaos-{os.getpid()}")
    group.mkdir()
    try:
        yield group
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
        deadline = time.time() + PATIENCE
        while True:  # processes that were killed leave the group when they have ended
            try:
                group.rmdir()
                break
            except OSError:
                if time.time() > deadline:
                    raise
                time.sleep(0.1)


def calm(lab: Lab, found: Found, _: random.Random, chosen: argparse.Namespace) -> None:
    """No fault: more ranks than cores, and long calls. No rank may be replaced."""
    ranks = 2 * (os.cpu_count() or 1)
    with lab.start(f"replicate{ranks} mb2", 10_000_000, "width=64", f"batch={2 * ranks}") as run:
        begin = run.wait_for_step(1, 5)
        assert begin is not None, run.output()
        end, number = begin + 60 * chosen.minutes, 0
        period = min(60.0, 20 * chosen.minutes)
        while time.time() + period < end:
            run.ask(number % 2, f"lock {max(7.0, period / 3)}" if number % 2 else f"sleep {period / 2}")
            number += 1
            time.sleep(period)
        time.sleep(max(0.0, end - time.time()))
        run.process.send_signal(signal.SIGTERM)
        found.runs, found.finished = 1, int(run.end() == 75)
        output = run.output()
        generations = [record for record in run.records.all() if record["kind"] == "generation"]
        found.false_alarms = sum(record["why"].startswith("lost ") for record in generations)
        found.named = len(re.findall(r"all ranks wait for rank \d+ on", output))
        found.more = {"changes": len(generations) - 1, "long_calls": number}
        say("\n".join(line for line in output.splitlines() if re.search("wait for|goes on|going on", line)))


def oom(lab: Lab, found: Found, _: random.Random, chosen: argparse.Namespace) -> None:
    """Memory for a smaller micro-batch than the plan's."""
    job = ("width=128", "context=128", "batch=128")
    found.named = 0
    for number in range(chosen.count):
        with quota("memory") as group:
            folder = lab.run_alone("replicate2 mb8×8 fp64", *job, "steps=10", group=group)
            expected = load_file(folder / "weights.safetensors")
            limit = round(1.2 * int((group / "memory.max_usage_in_bytes").read_text()))
        with quota("memory") as group:
            (group / "memory.limit_in_bytes").write_text(str(limit))
            with lab.start("replicate2 mb64 fp64", 10, *job, group=group) as run:
                status = run.end()
                found.runs += 1
                say(f"{number + 1}/{chosen.count}: limit {limit >> 20} MiB, status {status}\n{run.output()}")
                if status != 0:
                    continue
                found.judge(run.records, difference(run.folder, expected) <= TOLERANCE, 10)
                whys = [record["why"] for record in run.records.all() if record["kind"] == "generation"]
                found.named += any("out of memory" in why for why in whys)


def flip(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    """One bit of one rank's weights changes, with three replicas and with two."""
    found.named = 0
    for number in range(chosen.count):
        plan = ("replicate3 mb4", "replicate2 mb6")[number % 2]
        job = ("width=64", "batch=12")
        expected = (lab.run_alone(plan, *job, f"steps={STEPS}") / "weights.safetensors").read_bytes()
        with lab.start(plan, STEPS, *job) as run:
            rank, at = draw.randrange(3 - number % 2), draw.randrange(2, STEPS // 3)
            run.wait_for_step(1, at)
            run.ask(rank, "flip")
            judge(run, found, expected, run.end())
            record = run.record()
            named = re.findall(r"rank (\d+) on \S+ \(its weights are not those of the other replicas\)", record["why"])
            found.named += named == ([str(rank)] if number % 2 == 0 else ["0", "1"])
            say(f"{number + 1}/{chosen.count} {plan}: rank {rank}, step {at}: {record['why']}; exact {found.exact}")
