"""Faults in a running training, replayed from a seed: does it go on, how soon, and does it compute the same?

`python benchmarks/chaos.py SCENARIO --seed 1 --count 10 --json`

Scenarios on one host:
- `kill`: a rank is killed at a random moment, under replicate, shard, tensor, pipeline and mixed plans in turn. With
  `--peer torchrun`, the same fault under torchrun, which restarts all ranks, is counted beside it.
- `again`: a rank is killed, and another one while the run recovers.
- `stop`: a rank is stopped by SIGSTOP. `named` counts the runs in which it is named with its host and a line of code,
  `max_named_s` is the longest time until then.
- `calm`: no fault for `--minutes`, but twice as many ranks as cores, and every minute a call of 30 s or, holding the
  interpreter lock, of 20 s. `named` counts the calls that were named, `false_alarms` the ranks that were replaced.
- `slow`: a rank gets a quarter of a core. `named` counts the runs in which it is named, `max_named_steps` is the most
  steps until then, `step_ratio` the time of a step after it got a smaller share over that before. Needs root.
- `oom`: memory for a smaller micro-batch than the plan's (control groups of version 1; needs root).
- `flip`: a bit of a weight changes on one of three replicas, or of two. `named` counts the runs in which the rank, or
  both, are named.
- `generations`: one run loses its last rank COUNT times, at least ten. `same_resources`: the other one has as many open
  files and threads after the last four as after the third to sixth. `memory_ratio`: its resident memory at the end over
  that after the sixth.
- `storm`: 2 ranks train for `--minutes`, and one is killed every `--every` seconds. `effective_time`: seconds of the
  steps that count over the time since the first step.

Scenarios on three emulated hosts (network namespaces; needs root and etcd), of which a run needs two:
- `host`: one dies with all its processes, and later one joins.
- `leader`: the one that leads dies; COUNT times with an etcd of three members, of which one dies with it, and as often
  without, where the others must end with status 75, and the run continue when it is started again.
- `partition`: one is cut off silently, and both sides see the run's folder. `both_committed` counts the runs in which a
  side has made a checkpoint exist after the other one had begun to go on.

`exact` counts the runs whose weights are bit-equal to those of an uninterrupted run under the same plan (where the plan
changes: to 1e-9, in float64), and in which every step counts once.
`median_recovery_s` is the time from the fault to the end of the next step, `start_s` the time
from the start of the command to the end of the first step, `lost_steps` the most steps that were done again, and
`interval` the most steps between two snapshots.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import chaos_hosts
import chaos_ranks
from chaos_lab import Found, Lab

_SCENARIOS: dict[str, Callable[[Lab, Found, random.Random, argparse.Namespace], None]] = {
    "kill": chaos_ranks.kill,
    "again": chaos_ranks.again,
    "stop": chaos_ranks.stop,
    "generations": chaos_ranks.generations,
    "slow": chaos_ranks.slow,
    "storm": chaos_ranks.storm,
    "calm": chaos_ranks.calm,
    "oom": chaos_ranks.oom,
    "flip": chaos_ranks.flip,
    "host": chaos_hosts.host,
    "leader": chaos_hosts.leader,
    "partition": chaos_hosts.partition,
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=_SCENARIOS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--steps", type=int, default=300, help="of a run on several hosts")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults of a storm")
    parser.add_argument(
        "--peer", choices=["torchrun"], help="kill: also count how torchrun goes on after the same fault"
    )
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    found = Found(chosen.scenario)
    with tempfile.TemporaryDirectory() as folder:
        _SCENARIOS[chosen.scenario](Lab(Path(folder)), found, random.Random(chosen.seed), chosen)
    print(json.dumps(found.as_json()) if chosen.json else found.as_json())


if __name__ == "__main__":
    main()
