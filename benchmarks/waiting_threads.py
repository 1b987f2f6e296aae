"""Measure what the spin count of OpenMP does to a process with two threads, alone and next to busy programs.

`python benchmarks/waiting_threads.py --json`

The spin counts alternate within each round, so that the machine's noise affects all of them. The script prints
milliseconds per training step of a small model: the median over the rounds and the largest value, by the number of busy
programs and the spin count (`default`: the one of the OpenMP library).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SPIN_COUNTS = ("default", "10000", "1000", "0")
_BUSY_PROGRAMS = (0, 1, 2)
_ROUNDS = 5
_SECONDS = 3.0


def train() -> None:
    """Train for some seconds, and print the milliseconds of a step."""
    import torch
    from torch import nn

    torch.set_num_threads(2)
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)) for _ in range(8)]
    model, inputs = nn.Sequential(*blocks), torch.randn(64, 256)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    for _ in range(10):
        step()
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < _SECONDS:
        step()
        steps += 1
    print((time.perf_counter() - begin) / steps * 1e3)


def milliseconds(spin_count: str) -> float:
    environment = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    if spin_count != "default":
        environment["GOMP_SPINCOUNT"] = spin_count
    command = [sys.executable, __file__, "--train"]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


@contextmanager
def busy(programs: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
    try:
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train()
        return
    results = {}
    for programs in _BUSY_PROGRAMS:
        with busy(programs):
            rounds = [[milliseconds(count) for count in _SPIN_COUNTS] for _ in range(arguments.rounds)]
        for count, values in zip(_SPIN_COUNTS, zip(*rounds, strict=True), strict=True):
            results[f"{programs} busy, {count}"] = [round(statistics.median(values), 1), round(max(values), 1)]
    if arguments.json:
        print(json.dumps(results))
        return
    for name, (median, worst) in results.items():
        print(f"{name:20}  median {median:7.1f} ms  worst {worst:7.1f} ms")


if __name__ == "__main__":
    main()
