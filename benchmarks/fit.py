"""Chooses the constants of describe/constants.py and the efficiencies in transformer.py: `python benchmarks/fit.py`.

On the published rows whose id hashes to an even number, by random steps that are kept where they lower the error: half
the mean over all rows, half the mean of the sources' means, and a little regret. Prints what it found; nothing is
written. Every constant stays within what it can physically be. Dense rows in bf16 and fp16 alone: Megatron's efficiency
and what transformer.py says of experts were chosen on that half of the fp8 and mixture rows, most of which are its.
"""

import argparse
import math
import random
import statistics
from collections import defaultdict
from dataclasses import replace

from published_runs import DATA, chosen_on, read, regret
from transformer import software

from onecurve.describe.constants import Constants
from onecurve.predict.step import Predictor

LIMITS = {
    "matmul_efficiency": (0.6, 1.0),
    "attention_efficiency": (0.5, 1.2),
    "memory_efficiency": (0.5, 0.95),
    "op_launch_seconds": (3e-6, 3e-5),
    "collective_launch_ops": (1.0, 6.0),
    "intra_host_efficiency": (0.3, 1.0),
    "inter_host_efficiency": (0.3, 1.0),
    "overlap_penalty": (0.0, 0.6),
    "step_overhead_seconds": (1e-4, 2e-2),
    "round_overhead_seconds": (1e-5, 1e-2),
}
"""What the published runs tell; the other constants are onecurve's own engine's."""


class Fit:
    def __init__(self) -> None:
        self.runs = [run for run in read(DATA) if run.dense and chosen_on(run)]
        made = [(run, *software(run.source)) for run in self.runs]
        self.known = [(run, name, each, run.hosts(), run.plan(), run.profile(each)) for run, name, each in made]

    def score(self, constants: Constants, efficiencies: dict[str, float]) -> float:
        times, by_source = {}, defaultdict(list)
        for run, name, made, hosts, plan, profile in self.known:
            engine = replace(made.engine, efficiency=efficiencies.get(name, made.engine.efficiency))
            times[id(run)] = sum(Predictor(hosts, engine, constants).seconds(profile, plan).values())
            by_source[run.source].append(abs(times[id(run)] / run.measured - 1))
        every = statistics.fmean(error for found in by_source.values() for error in found)
        large = statistics.fmean(statistics.fmean(found) for found in by_source.values() if len(found) >= 5)
        return 100 * (every + large) / 2 + 0.3 * regret(self.runs, lambda run: times[id(run)])["mean"]

    def choose(self, trials: int) -> tuple[Constants, dict[str, float], float]:
        draw = random.Random(0)
        constants = Constants()
        efficiencies = {"composer": 0.9, "torchtitan": 0.9, "jax": 1.0}
        best, width = self.score(constants, efficiencies), 0.15
        names = [*LIMITS, *efficiencies]
        for trial in range(trials):
            tried, speeds = constants, dict(efficiencies)
            for name in draw.sample(names, draw.choice((1, 1, 2, 3))):
                factor = math.exp(draw.gauss(0, width))
                if name in speeds:
                    speeds[name] = min(1.3, max(0.7, speeds[name] * factor))
                else:
                    low, high = LIMITS[name]
                    tried = replace(tried, **{name: min(high, max(low, getattr(tried, name) * factor))})
            found = self.score(tried, speeds)
            if found < best:
                best, constants, efficiencies = found, tried, speeds
            if trial % 150 == 149:
                width *= 0.8
        return constants, efficiencies, best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1500)
    constants, efficiencies, score = Fit().choose(parser.parse_args().trials)
    for name in LIMITS:
        print(f"{name:24} {getattr(constants, name):.3g}")
    for name, value in efficiencies.items():
        print(f"{name:24} {value:.3g}  (efficiency)")
    print(f"{'score':24} {score:.3f}")


if __name__ == "__main__":
    main()
