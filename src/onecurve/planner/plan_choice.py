"""Which plan and how many ranks, from what the user asked for."""

import json
from collections.abc import Sequence
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_plain, read_toml, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan, Precision, default_plan

AUTO = "auto"
_PLANNED: tuple[Precision, ...] = ("fp32", "bf16", "fp16")


def choose_plan(wish: Plan | str, global_batch: int, ranks: int) -> Plan:
    """`auto`, the short text form, the path of a plan.toml, a plan, or what `as_text` made of it."""
    if isinstance(wish, Plan):
        return wish
    if wish == AUTO:
        return default_plan(global_batch, ranks)
    if wish.startswith("{"):
        return from_plain(Plan, json.loads(wish), "plan")
    return read_toml(Plan, Path(wish)) if wish.endswith(".toml") else Plan.parse(wish)


def allowed(precisions: Sequence[str]) -> list[Precision]:
    """What a plan may compute in."""
    for each in precisions:
        if each not in _PLANNED:
            raise OnecurveError(f"precision {each!r}: a plan may compute in {', '.join(_PLANNED)}")
    return [each for each in _PLANNED if each in precisions]


def as_text(wish: Plan | str) -> str:
    """To be handed to the ranks. The short form leaves out layouts and stages, which a plan may have."""
    return to_json(wish) if isinstance(wish, Plan) else wish


def ranks_for(wish: str, ranks: int | None, cluster: Cluster) -> int:
    """How many ranks to start: as many as the plan has, or as asked for, or one per accelerator; one on a CPU host."""
    if ranks is not None and ranks < 1:
        raise OnecurveError(f"ranks = {ranks}; at least 1 is needed")
    if wish == AUTO:
        return ranks if ranks is not None else (1 if cluster.device_kind == "cpu" else cluster.devices)
    needed = choose_plan(wish, 0, 0).mesh.size
    if ranks is not None and ranks != needed:
        raise OnecurveError(f"plan {wish}: it has {needed} ranks, but {ranks} were asked for; leave one of the two out")
    return needed
