"""One rank of audit.py: trains with an audit, and writes what it reported and how long steps took."""

import dataclasses
import importlib
import json
import os
import random
import sys
import time
from pathlib import Path

import onecurve as oc
from onecurve.describe.errors import FaultyRankError

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "jobs"), str(ROOT / "examples")]
_WARM_UP = 6


def flips(plan: str, steps: int, count: int) -> dict[str, object]:
    """Audit every step, and flip a bit now and then: another rank, bit, place and pass each time."""
    import faulty

    made: list[faulty.Fault] = []
    original = faulty.Fault.__init__

    def remember(self: faulty.Fault, *arguments: object) -> None:
        original(self, *arguments)
        made.append(self)

    faulty.Fault.__init__ = remember
    rng = random.Random(0)
    planted = dict.fromkeys(sorted(rng.sample(range(5, steps), count)))
    reported: dict[int, list[object]] = {}
    with oc.prepare(faulty.job(audit=1, steps=steps), plan=plan) as run:
        for batch in run:
            for fault in made:
                fault.first = 10**9
            if batch.step in planted:
                rank, bit, place = (
                    rng.randrange(run.world.size),
                    rng.randrange(31),
                    rng.choice(["weight", "activation"]),
                )
                # 0 is the pass of the audit, 1 that of the step, if there is one round.
                only = rng.choice([0, 1]) if run.plan.rounds == 1 else rng.randrange(2 * run.plan.rounds)
                planted[batch.step] = [rank, bit, place, only]
                for fault in made:
                    fault.rank, fault.bit, fault.place, fault.only, fault.first = rank, bit, place, only, batch.step
            try:
                run.step(batch)
            except FaultyRankError as error:
                reported[batch.step] = [*error.ranks, str(error)]
        audit = run.components.trainer.audit
        is_on = not audit._is_off and audit._partner == audit._ranks.partner
    return {"planted": planted, "reported": reported, "audit_is_on": is_on}


def cost(plan: str, steps: int) -> dict[str, object]:
    """Seconds of steps that are audited, and of steps that are not, which alternate."""
    gpt = importlib.import_module("gpt")
    job = gpt.job(width=128, context=128, batch=16, steps=steps + _WARM_UP)
    seconds: dict[str, list[float]] = {"plain": [], "audited": []}
    with oc.prepare(dataclasses.replace(job, audit=2, save=None, evaluate=None), plan=plan) as run:
        begin = time.perf_counter()
        for batch in run:
            run.step(batch)
            end = time.perf_counter()
            if batch.step > _WARM_UP:
                seconds["audited" if batch.step % 2 == 0 else "plain"].append(end - begin)
            begin = end
    return seconds


if __name__ == "__main__":
    out, what, plan, *numbers = sys.argv[1:]
    result = flips(plan, *map(int, numbers)) if what == "flips" else cost(plan, *map(int, numbers))
    if os.environ.get("RANK", "0") == "0":
        Path(out).write_text(json.dumps(result))
