"""Measure the overhead of onecurve relative to hand-written loops on the same engine.

`python benchmarks/overhead.py --json`

The loops alternate step by step in the same two processes, so that the machine's noise affects both. The script prints
ratios of step time: the median over pairs of neighbouring steps, with a bootstrapped 95 % confidence interval. Start
time is measured from launch to the line that reports the first step.
"""

import argparse
import importlib.util
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bare import SIZES

HERE = Path(__file__).parent
_RANKS = 2
_BOOTSTRAP_SAMPLES = 2000
_LAUNCHES = 7
"""Number of launches per program when start time is measured."""


def measure(script: str, pairs: int, loops: Sequence[str] = ()) -> dict[str, list[float]]:
    """Run a benchmark script with torchrun and return the seconds of every step, by loop."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        command = [*torchrun(), str(HERE / script), str(out), str(pairs), *loops]
        subprocess.run(command, check=True)
        return json.loads(out.read_text())


def torchrun(ranks: int = _RANKS) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the median ratio of paired values and its 95 % confidence interval."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(_BOOTSTRAP_SAMPLES))
    low, high = medians[int(0.025 * _BOOTSTRAP_SAMPLES)], medians[int(0.975 * _BOOTSTRAP_SAMPLES)]
    return statistics.median(ratios), (low, high)


def seconds_to_first_step(command: Sequence[str], folder: str) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = next((time.perf_counter() for line in process.stdout if line.lstrip().startswith("step")), None)
        process.stdout.read()
    if first is None:
        raise SystemExit(f"the command ended without a step: {' '.join(command)}")
    return first - begin


def start_ratio(ranks: int) -> float:
    """Return the start time of `onecurve run` over that of bare.py under torchrun; launches alternate."""
    sizes = [f"{name}={value}" for name, value in SIZES.items()]
    example = str(HERE.parent / "examples" / "gpt.py")
    ours = [sys.executable, "-m", "onecurve", "run", example, *sizes, "steps=2", "--ranks", str(ranks), "--fresh"]
    bare = [*torchrun(ranks), str(HERE / "bare.py")]
    start_seconds: dict[str, list[float]] = {"onecurve": [], "bare": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_LAUNCHES):
            start_seconds["onecurve"].append(seconds_to_first_step(ours, folder))
            start_seconds["bare"].append(seconds_to_first_step(bare, folder))
    medians = {name: statistics.median(seconds) for name, seconds in start_seconds.items()}
    show(f"start {ranks}", f"onecurve {medians['onecurve']:.1f} s, bare torchrun {medians['bare']:.1f} s")
    return medians["onecurve"] / medians["bare"]


def against_bare(pairs: int) -> dict[str, Any]:
    """Measure the step against bare.py, on DDP and on FSDP2."""
    ratios: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for engine in ("ddp", "zero3"):
        names = [f"{framework}-{engine}-fp32" for framework in ("onecurve", "bare")]
        seconds = measure("overhead_rank.py", pairs, names)
        ratios[engine], intervals[engine] = ratio(*(seconds[name] for name in names))
        bare_ms = statistics.median(seconds[names[1]]) * 1e3
        result = with_interval(ratios[engine], intervals[engine])
        show(engine, f"onecurve / bare {result}, bare {bare_ms:.0f} ms per step")
    return {"step_ratio": ratios, "step_ratio_interval": intervals}


def against_styles(pairs: int) -> tuple[float, tuple[float, float], dict[str, float]]:
    """Measure the tensor-parallel step against `parallelize_module`, and against plain local tensors."""
    names = [f"{framework}-tensor-fp32" for framework in ("onecurve", "styles", "local", "compiled")]
    seconds = measure("overhead_rank.py", pairs, names)
    ours, styles, eager, compiled = (seconds[name] for name in names)
    over_styles, interval = ratio(ours, styles)
    over_local = {"eager": ratio(ours, eager)[0], "compiled": ratio(ours, compiled)[0]}
    show("tensor2", f"onecurve / parallelize_module {with_interval(over_styles, interval)}")
    show("", f"onecurve / local tensors {over_local['eager']:.3f}, compiled {over_local['compiled']:.3f}")
    return over_styles, interval, over_local


def against_stages(pairs: int) -> tuple[float, tuple[float, float]]:
    """Measure the pipeline step against hand-written stages under the same schedule."""
    names = [f"{framework}-pipeline-fp32" for framework in ("onecurve", "stages")]
    seconds = measure("overhead_rank.py", pairs, names)
    over_stages, interval = ratio(*(seconds[name] for name in names))
    show("pipeline2", f"onecurve / hand-written stages {with_interval(over_stages, interval)}")
    return over_stages, interval


def bf16_speedups(pairs: int) -> dict[str, float]:
    """Measure the step time in fp32 over that in bf16, for onecurve and for bare.py."""
    frameworks = ("onecurve", "bare")
    names = [f"{framework}-ddp-{precision}" for framework in frameworks for precision in ("fp32", "bf16")]
    seconds = measure("overhead_rank.py", pairs, names)
    speedups = {name: ratio(seconds[f"{name}-ddp-fp32"], seconds[f"{name}-ddp-bf16"])[0] for name in frameworks}
    show("bf16", f"speedup over fp32: {speedups['onecurve']:.3f} (onecurve), {speedups['bare']:.3f} (bare)")
    return speedups


def recording(blocks: int) -> tuple[float, tuple[float, float]]:
    """Step time with records over that without."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cost.json"
        subprocess.run([*torchrun(), str(HERE / "why_cost.py"), str(out), str(blocks)], check=True)
        seconds = json.loads(out.read_text())
    pairs = min(map(len, seconds.values()))
    return ratio(seconds["recorded"][:pairs], seconds["bare"][:pairs])


def show_recording(blocks: int = 480) -> float:
    value, interval = recording(blocks)
    show("records", f"with / without {with_interval(value, interval)}")
    return value


def peers_over_bare(pairs: int) -> dict[str, float]:
    """Measure the step of Accelerate and Lightning against bare.py, if they are installed."""
    ratios: dict[str, float] = {}
    if importlib.util.find_spec("accelerate"):
        seconds = measure("overhead_rank.py", pairs, ["accelerate-ddp-fp32", "bare-ddp-fp32"])
        ratios["accelerate"] = ratio(seconds["accelerate-ddp-fp32"], seconds["bare-ddp-fp32"])[0]
    if importlib.util.find_spec("lightning"):
        seconds = measure("overhead_lightning.py", pairs)
        ratios["lightning"] = ratio(seconds["lightning-ddp-fp32"], seconds["bare-ddp-fp32"])[0]
    for name, value in ratios.items():
        show(name, f"/ bare {value:.3f}")
    return ratios


def with_interval(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} ({interval[0]:.3f} … {interval[1]:.3f})"


def show(label: str, text: str) -> None:
    print(f"{label:11}{text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="number of alternating pairs of steps (default: 200)")
    parser.add_argument("--peers", action="store_true", help="also measure Accelerate and Lightning, if installed")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--starts", action="store_true", help="measure only the time to the first step")
    parser.add_argument("--recording", action="store_true", help="measure only what the records of a run cost")
    arguments = parser.parse_args()
    if arguments.recording:
        show_recording()
        return
    if arguments.starts:
        print(json.dumps({"start_ratio": start_ratio(2), "start_ratio_4": start_ratio(4)}))
        return
    result = against_bare(arguments.pairs)
    over_styles, interval, over_local = against_styles(arguments.pairs)
    result["step_ratio"]["tensor2"], result["step_ratio_interval"]["tensor2"] = over_styles, interval
    over_stages, interval = against_stages(arguments.pairs)
    result["step_ratio"]["pipeline2"], result["step_ratio_interval"]["pipeline2"] = over_stages, interval
    result |= {
        "tensor_over_local": over_local,
        "recording": show_recording(),
        "start_ratio": start_ratio(2),
        "start_ratio_4": start_ratio(4),
        "bf16_speedup": bf16_speedups(arguments.pairs),
        "peers": peers_over_bare(arguments.pairs) if arguments.peers else {},
    }
    if arguments.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
