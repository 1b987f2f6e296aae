"""What onecurve costs beside a loop written by hand on the same engine: `python benchmarks/overhead.py --json`.

Steps are alternated inside the same two processes, so the machine's noise falls on both; a ratio is the median over
pairs of neighbouring steps, with a bootstrapped 95 % interval. The start is from launch to the first step's line.
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
_DRAWS = 2000
_STARTS = 7


def measure(script: str, pairs: int, loops: Sequence[str] = ()) -> dict[str, list[float]]:
    """Seconds of every step of each loop."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        command = [*torchrun(), str(HERE / script), str(out), str(pairs), *loops]
        subprocess.run(command, check=True)
        return json.loads(out.read_text())


def torchrun() -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_RANKS)]


def ratio(of: Sequence[float], to: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median ratio of neighbours, and its interval."""
    ratios = [a / b for a, b in zip(of, to, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_DRAWS))
    return statistics.median(ratios), (medians[int(0.025 * _DRAWS)], medians[int(0.975 * _DRAWS)])


def seconds_to_first_step(command: Sequence[str], folder: str) -> float:
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first = next((time.perf_counter() for line in process.stdout if line.lstrip().startswith("step")), None)
        process.stdout.read()
    if first is None:
        raise SystemExit(f"no step was taken by: {' '.join(command)}")
    return first - begin


def start_ratio() -> float:
    """onecurve run against torchrun of the bare program, in turns."""
    sizes = [f"{name}={value}" for name, value in SIZES.items()]
    example = str(HERE.parent / "examples" / "gpt.py")
    ours = [sys.executable, "-m", "onecurve", "run", example, *sizes, "steps=2", "--ranks", str(_RANKS), "--fresh"]
    bare = [*torchrun(), str(HERE / "bare.py")]
    taken: dict[str, list[float]] = {"onecurve": [], "bare": []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_STARTS):
            taken["onecurve"].append(seconds_to_first_step(ours, folder))
            taken["bare"].append(seconds_to_first_step(bare, folder))
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    show("start", f"onecurve {medians['onecurve']:.1f} s, bare torchrun {medians['bare']:.1f} s")
    return medians["onecurve"] / medians["bare"]


def against_bare(pairs: int) -> dict[str, Any]:
    """The step on DDP and FSDP2."""
    ratios: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for engine in ("ddp", "zero3"):
        names = [f"{who}-{engine}-fp32" for who in ("onecurve", "bare")]
        seconds = measure("overhead_rank.py", pairs, names)
        ratios[engine], intervals[engine] = ratio(*(seconds[name] for name in names))
        typical = statistics.median(seconds[names[1]]) * 1e3
        show(engine, f"onecurve / bare {spread(ratios[engine], intervals[engine])}, bare {typical:.0f} ms a step")
    return {"step_ratio": ratios, "step_ratio_interval": intervals}


def against_styles(pairs: int) -> tuple[float, tuple[float, float], dict[str, float]]:
    """The step cut along the tensor axis: to torch's parallel styles, and to plain local tensors."""
    names = [f"{who}-tensor-fp32" for who in ("onecurve", "styles", "local", "compiled")]
    seconds = measure("overhead_rank.py", pairs, names)
    ours, styles, eager, compiled = (seconds[name] for name in names)
    found, interval = ratio(ours, styles)
    local = {"eager": ratio(ours, eager)[0], "compiled": ratio(ours, compiled)[0]}
    show("tensor2", f"onecurve / parallelize_module {spread(found, interval)}")
    show("", f"onecurve / local tensors {local['eager']:.3f}, compiled {local['compiled']:.3f}")
    return found, interval, local


def against_stages(pairs: int) -> tuple[float, tuple[float, float]]:
    """The step in two stages: to modules split by hand under the same schedule."""
    names = [f"{who}-pipeline-fp32" for who in ("onecurve", "stages")]
    seconds = measure("overhead_rank.py", pairs, names)
    found, interval = ratio(*(seconds[name] for name in names))
    show("pipeline2", f"onecurve / stages by hand {spread(found, interval)}")
    return found, interval


def bf16_speedups(pairs: int) -> dict[str, float]:
    names = [f"{who}-ddp-{precision}" for who in ("onecurve", "bare") for precision in ("fp32", "bf16")]
    seconds = measure("overhead_rank.py", pairs, names)
    found = {who: ratio(seconds[f"{who}-ddp-fp32"], seconds[f"{who}-ddp-bf16"])[0] for who in ("onecurve", "bare")}
    show("bf16", f"faster than fp32 by {found['onecurve']:.3f} (onecurve), {found['bare']:.3f} (bare)")
    return found


def peers_over_bare(pairs: int) -> dict[str, float]:
    found: dict[str, float] = {}
    if importlib.util.find_spec("accelerate"):
        seconds = measure("overhead_rank.py", pairs, ["accelerate-ddp-fp32", "bare-ddp-fp32"])
        found["accelerate"] = ratio(seconds["accelerate-ddp-fp32"], seconds["bare-ddp-fp32"])[0]
    if importlib.util.find_spec("lightning"):
        seconds = measure("overhead_lightning.py", pairs)
        found["lightning"] = ratio(seconds["lightning-ddp-fp32"], seconds["bare-ddp-fp32"])[0]
    for name, value in found.items():
        show(name, f"/ bare {value:.3f}")
    return found


def spread(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} ({interval[0]:.3f} … {interval[1]:.3f})"


def show(what: str, text: str) -> None:
    print(f"{what:11}{text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="alternated pairs of steps (200)")
    parser.add_argument("--peers", action="store_true", help="also Accelerate and Lightning, where installed")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    asked = parser.parse_args()
    result = against_bare(asked.pairs)
    found, interval, local = against_styles(asked.pairs)
    result["step_ratio"]["tensor2"], result["step_ratio_interval"]["tensor2"] = found, interval
    found, interval = against_stages(asked.pairs)
    result["step_ratio"]["pipeline2"], result["step_ratio_interval"]["pipeline2"] = found, interval
    result |= {
        "tensor_over_local": local,
        "start_ratio": start_ratio(),
        "bf16_speedup": bf16_speedups(asked.pairs),
        "peers": peers_over_bare(asked.pairs) if asked.peers else {},
    }
    if asked.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
