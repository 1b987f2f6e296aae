"""How long a leader needs to go on when many of its hosts are lost at once.

`python benchmarks/reassign.py --hosts 10000 --lost 100 --json`

A simulation: the reports of the hosts are made up, and nothing is sent. `seconds` is the time for all that the leader
computes: the newest snapshot that is complete among the hosts that are left, the decision, the plan for them, and their
assignments, as the text that is sent to each. `kept_for_others` is the largest number of other hosts whose snapshots a
host keeps.
"""

import argparse
import asyncio
import json
import time
from collections import Counter

from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup
from onecurve.describe.convert import to_json
from onecurve.describe.generation import Generation, StoreAddress
from onecurve.describe.host import HostRegistration, HostReport, KeptSnapshots
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.hosts.decision import Facts, decide
from onecurve.hosts.generation_end import GenerationEnd
from onecurve.hosts.leader import assignments
from onecurve.verbs.crews import GivenCrews

_RANKS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=10_000)
    parser.add_argument("--lost", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    count, lost = chosen.hosts, chosen.lost
    device = DeviceSpec(name="gpu", kind="cuda", memory=1 << 34)
    cluster = Cluster((HostGroup(device=device, devices_per_host=_RANKS),))
    hosts = {
        f"h{number}": HostRegistration(name=f"h{number}", address=f"10.0.{number >> 8}.{number & 255}", cluster=cluster)
        for number in range(count)
    }
    plan = Plan(Mesh(replicate=count, shard=_RANKS), micro_batch=4)
    # Hosts are lost that are not neighbours, so that of each snapshot one copy is left.
    gone = {f"h{number}" for number in range(1, count, count // lost)}
    reports = [
        (name, HostReport(generation=7, step=500, snapshots=_kept(number, count)))
        for number, name in enumerate(hosts)
        if name not in gone
    ]
    left = {name: host for name, host in hosts.items() if name not in gone}
    crews = GivenCrews(plan, _RANKS)

    begin = time.perf_counter()
    end = GenerationEnd(reports=reports, lost=sorted(gone))
    snapshot = end.newest_snapshot({7: count * _RANKS})
    decision = decide(
        Facts(failures=(), hosts=len(left), lost_hosts=len(gone), least_hosts=count // 2, failures_at_step=1)
    )
    crew = asyncio.run(crews.choose(left))
    generation = Generation(
        number=8, size=crew.size, hosts=len(left), store=StoreAddress("10.0.0.1", 29500, "00" * 32), plan=crew.plan
    )
    assigned = assignments(generation, "run", crew.placement, left)
    texts = [to_json(each) for _, each in assigned]
    seconds = time.perf_counter() - begin

    keepers = Counter(each.partner.host for _, each in assigned if each.partner is not None)
    found = {
        "hosts": count,
        "lost": len(gone),
        "action": decision.action,
        "from_step": snapshot.step if snapshot is not None else None,
        "plan": str(crew.plan),
        "seconds": round(seconds, 3),
        "bytes_per_host": max(map(len, texts)),
        "kept_for_others": max(keepers.values()),
    }
    print(json.dumps(found) if chosen.json else found)


def _kept(number: int, count: int) -> tuple[KeptSnapshots, ...]:
    """What a host keeps: the snapshots of its own ranks, and copies of those of the host before it."""
    own = [number * _RANKS + rank for rank in range(_RANKS)]
    before = [(number - 1) % count * _RANKS + rank for rank in range(_RANKS)]
    return tuple(KeptSnapshots(7, rank, (400, 450)) for rank in (*own, *before))


if __name__ == "__main__":
    main()
