"""Fit the constants of describe/constants.py and the efficiencies in transformer.py: `python benchmarks/fit.py`.

A random search on the published rows whose id hashes to an even number; a random step is accepted if it lowers the
score. The score is the average of two mean absolute errors (over all rows, and over the means of the sources) plus a
small weight on regret. Every constant stays within physical limits. The script prints the fitted values and writes
nothing.

Only dense rows in bf16 and fp16 are used. Megatron's efficiency and the cost of experts in transformer.py were fitted
separately, on the same half of the fp8 and mixture-of-experts rows, most of which are Megatron's.
"""

import argparse
import math
import random
import statistics
from collections import defaultdict
from dataclasses import replace

from published_runs import DATA, is_fitting_row, read, regret
from transformer import software

from onecurve.describe.constants import Constants
from onecurve.estimate.step import Predictor

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
"""Lower and upper limit of each fitted constant. The other constants describe onecurve's own engine, about which the
published runs say nothing."""


class Fit:
    """The rows used for fitting, with the parts of their predictions that do not depend on the constants."""

    def __init__(self) -> None:
        self.runs = [run for run in read(DATA) if run.dense and is_fitting_row(run)]
        self.cases = []
        for run in self.runs:
            name, framework = software(run.source)
            self.cases.append((run, name, framework.engine, run.hosts(), run.plan(), run.profile(framework)))

    def score(self, constants: Constants, efficiencies: dict[str, float]) -> float:
        """Return the score in percent; lower is better. `efficiencies` override those stated in transformer.py."""
        times, by_source = {}, defaultdict(list)
        for run, name, stated_engine, hosts, plan, profile in self.cases:
            engine = replace(stated_engine, efficiency=efficiencies.get(name, stated_engine.efficiency))
            times[id(run)] = sum(Predictor(hosts, engine, constants).seconds(profile, plan).values())
            by_source[run.source].append(abs(times[id(run)] / run.measured - 1))
        over_rows = statistics.fmean(error for errors in by_source.values() for error in errors)
        over_sources = statistics.fmean(statistics.fmean(errors) for errors in by_source.values() if len(errors) >= 5)
        return 100 * (over_rows + over_sources) / 2 + 0.3 * regret(self.runs, lambda run: times[id(run)])["mean"]

    def choose(self, trials: int) -> tuple[Constants, dict[str, float], float]:
        """Return the best constants, the best efficiencies by framework, and their score."""
        rng = random.Random(0)
        constants = Constants()
        efficiencies = {"composer": 0.9, "torchtitan": 0.9, "jax": 1.0}
        best_score, step_size = self.score(constants, efficiencies), 0.15
        names = [*LIMITS, *efficiencies]
        for trial in range(trials):
            new_constants, new_efficiencies = constants, dict(efficiencies)
            for name in rng.sample(names, rng.choice((1, 1, 2, 3))):
                factor = math.exp(rng.gauss(0, step_size))
                if name in new_efficiencies:
                    new_efficiencies[name] = min(1.3, max(0.7, new_efficiencies[name] * factor))
                else:
                    low, high = LIMITS[name]
                    value = min(high, max(low, getattr(new_constants, name) * factor))
                    new_constants = replace(new_constants, **{name: value})
            score = self.score(new_constants, new_efficiencies)
            if score < best_score:
                best_score, constants, efficiencies = score, new_constants, new_efficiencies
            if trial % 150 == 149:
                step_size *= 0.8
        return constants, efficiencies, best_score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1500, help="random steps of the search (default: 1500)")
    constants, efficiencies, score = Fit().choose(parser.parse_args().trials)
    for name in LIMITS:
        print(f"{name:24} {getattr(constants, name):.3g}")
    for name, value in efficiencies.items():
        print(f"{name:24} {value:.3g}  (efficiency)")
    print(f"{'score':24} {score:.3f}")


if __name__ == "__main__":
    main()
