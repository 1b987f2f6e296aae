"""What do tensor trains save and cost? The GPT example with ranks 8, 16 and 32 in its feed-forward layers, and dense.

`python benchmarks/tensor_train.py --json` prints, for each, `parameters` (and those of the feed-forward layers), `loss`
(on unseen text after 300 steps, `onecurve run`) and `step_ratio`: the time of a step over that of the dense model,
whose steps are measured in turn in the same process.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from onecurve.job.script import load_job

JOB = Path(__file__).parent / "tt_job.py"
RANKS = (0, 8, 16, 32)
STEPS, TIMED = 300, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args()
    models = {rank: load_job(JOB, [f"rank={rank}"]).model() for rank in RANKS}
    ratios = step_ratios(models)
    found = {}
    for rank, model in models.items():
        found["dense" if rank == 0 else f"rank {rank}"] = {
            "parameters": size(model),
            "feed_forward": sum(size(block.mlp) for block in model.blocks),
            "loss": round(trained_loss(rank), 4),
            "step_ratio": round(ratios[rank], 3),
        }
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def step_ratios(models: dict[int, nn.Module]) -> dict[int, float]:
    """Medians over the steps of the time over that of the dense model's step before."""
    text = torch.randint(256, (32, 64))
    optimizers = {rank: torch.optim.AdamW(model.parameters(), fused=True) for rank, model in models.items()}
    ratios = {rank: [] for rank in models}
    for number in range(TIMED + 3):
        seconds = {}
        for rank, model in models.items():
            begin = time.perf_counter()
            optimizers[rank].zero_grad()
            nn.functional.cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
            optimizers[rank].step()
            seconds[rank] = time.perf_counter() - begin
        if number >= 3:
            for rank in models:
                ratios[rank].append(seconds[rank] / seconds[0])
    return {rank: statistics.median(values) for rank, values in ratios.items()}


def trained_loss(rank: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        words = ["run", str(JOB), f"rank={rank}", f"steps={STEPS}", "--ranks", "1", "--no-check", "--out", folder]
        subprocess.run([sys.executable, "-m", "onecurve", *words, "--json"], check=True, capture_output=True)
        return json.loads((Path(folder) / "summary.json").read_text())["evaluation"]["loss"]


if __name__ == "__main__":
    main()
