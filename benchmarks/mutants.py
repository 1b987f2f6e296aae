"""Mutation testing of check: `python benchmarks/mutants.py --count 200 --seed 1`.

Each mutant is a model trained under a plan in which onecurve computes one thing wrongly, for example "the gradient of
blocks.0.up.weight is 1 % too large". `onecurve check` compares the plan with one device, and must say that they differ.
The models: a GPT, a ResNet, a model whose head begins with zeros, one in which the residual branches do too, and a
Llama with LoRA adapters of peft. In the last three, most gradients are zero in the first step. By default, check
compares the first step and one from moved weights, as the check before training does.

A mutant is drawn from all combinations of model, plan, fault and parameter; which ones depends only on the seed. Before
the mutants of a plan, the plan is compared without a fault. `--seconds` ends the run early: then it says how many
mutants were tried.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import mutants_job
import torch

import onecurve as oc

_TOGETHER = 20
"""Mutants that are compared by one call of check. More make it faster; `--seconds` is looked at between the calls."""
PLANS = {
    "gpt": ("replicate2 mb4", "shard2 mb2×2", "tensor2 mb8", "pipeline2 mb4×2"),
    "resnet": ("replicate2 mb4", "shard2 mb4"),
    "zero_head": ("mb4×2", "replicate2 mb4", "shard2 mb2×2", "tensor2 mb8", "pipeline2 mb4×2"),
    "zero_branches": ("mb4×2", "replicate2 mb4", "shard2 mb2×2", "tensor2 mb8", "pipeline2 mb4×2"),
    "lora": ("replicate2 mb4", "shard2 mb4", "tensor2 mb8", "pipeline2 mb4×2"),
}
"""Model → the plans under which its mutants are trained."""


@dataclass(frozen=True)
class Mutant:
    model: str
    plan: str
    kind: str
    parameter: str

    def __str__(self) -> str:
        return f"{self.model}, {self.plan}, {self.parameter}: {mutants_job.FAULTS[self.kind].__doc__}"


@dataclass(frozen=True)
class Result:
    mutant: Mutant
    outcome: str
    """What check said. Only "differs" is a mutant that was caught; a crash says nothing about what check sees."""
    tensor: str
    reason: str


def small_llama(folder: Path) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=256, num_hidden_layers=2, **sizes)).save_pretrained(folder)
    return str(folder)


def draw(count: int, seed: int, folder: str) -> list[Mutant]:
    """Return different mutants. Each model has the same probability, so that none is left out."""
    generator = random.Random(seed)
    parameters = {}
    for model in PLANS:
        module = mutants_job.job(model, folder=folder).model()
        parameters[model] = [name for name, each in module.named_parameters() if each.requires_grad]
    drawn: dict[Mutant, None] = {}
    while len(drawn) < count:
        model = generator.choice(list(PLANS))
        plan, kind = generator.choice(PLANS[model]), generator.choice(list(mutants_job.FAULTS))
        drawn[Mutant(model, plan, kind, generator.choice(parameters[model]))] = None
    return list(drawn)


def batches(mutants: Sequence[Mutant]) -> Iterator[list[Mutant]]:
    """Mutants of one model and of plans that share one-device runs, a few at a time."""
    alike: defaultdict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        alike[mutant.model, oc.Plan.parse(mutant.plan).mesh.size].append(mutant)
    for group in alike.values():
        for begin in range(0, len(group), _TOGETHER):
            yield group[begin : begin + _TOGETHER]


def try_mutants(mutants: Sequence[Mutant], steps: int, folder: str) -> list[Result]:
    model = mutants[0].model
    sound = list(dict.fromkeys(mutant.plan for mutant in mutants))
    faults = [("", "")] * len(sound) + [(mutant.kind, mutant.parameter) for mutant in mutants]
    result = oc.check(
        Path(mutants_job.__file__),
        [f"model={model}", f"faults={json.dumps(faults)}", f"folder={folder}"],
        plans=[*sound, *(mutant.plan for mutant in mutants)],
        steps=steps,
        quiet=True,
    )
    assert result is not None
    verdicts = result.verdicts
    assert len(verdicts) == len(faults), "a plan was refused"
    for plan, verdict in zip(sound, verdicts, strict=False):
        assert verdict.holds, f"{model} under {plan} without a fault: {verdict}"
    found = zip(mutants, verdicts[len(sound) :], strict=True)
    return [Result(mutant, each.outcome, each.tensor, each.reason) for mutant, each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="chooses the mutants")
    parser.add_argument("--steps", type=int, default=1, help="steps before the one from moved weights")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no further mutants after this time")
    parser.add_argument("--at-least", type=int, default=0, help="exit with 1 if fewer are caught")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    began, results = time.monotonic(), list[Result]()
    with tempfile.TemporaryDirectory() as temporary:
        folder = small_llama(Path(temporary))
        for batch in batches(draw(arguments.count, arguments.seed, folder)):
            if time.monotonic() - began > arguments.seconds:
                break
            results += try_mutants(batch, arguments.steps, folder)
            print(f"{len(results)} of {arguments.count} mutants tried", file=sys.stderr, flush=True)
    caught = [result for result in results if result.outcome == "differs"]
    if arguments.json:
        print(json.dumps({"caught": len(caught), "of": len(results), "mutants": [asdict(each) for each in results]}))
    else:
        for result in results:
            word = f"caught by {result.tensor}" if result.outcome == "differs" else f"NOT CAUGHT ({result.outcome})"
            print(f"{result.mutant}: {word} {result.reason}".rstrip())
        for model in PLANS:
            of_model = [result for result in results if result.mutant.model == model]
            print(f"{model}: {sum(result in caught for result in of_model)} of {len(of_model)} caught")
        print(f"{len(caught)} of {len(results)} mutants caught in {time.monotonic() - began:.0f} s")
    sys.exit(len(caught) < arguments.at_least)


if __name__ == "__main__":
    main()
