import pytest

from onecurve.describe.assignment import Assignment
from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json, write_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.generation import Generation, StoreAddress
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.planner.plan_choice import ranks_for, read_plan, read_precisions

PLAN = Plan(Mesh(pipeline=2), 3, 4, stages=(3, 1), layouts={"head.weight": "dim 0"})
CPU = Cluster.of("cpu", 4, 1 << 30, 4)
GPUS = Cluster.of("cuda", 8, 80 << 30, 64)


def test_a_plan_is_read_from_text_a_file_or_as_it_is(tmp_path) -> None:
    write_toml(PLAN, tmp_path / "plan.toml")
    assert read_plan(PLAN) is PLAN
    assert read_plan("pipeline2 mb3×4") == Plan(Mesh(pipeline=2), 3, 4)
    assert read_plan(str(tmp_path / "plan.toml")) == PLAN
    assert read_plan("auto") is None


def test_an_assignment_carries_the_full_plan_to_the_ranks() -> None:
    generation = Generation(number=1, size=2, hosts=1, store=StoreAddress("127.0.0.1", 1, "00"), plan=PLAN)
    assignment = Assignment(generation=generation, rank=0, local_rank=0, local_size=2, interface="lo")
    assert from_json(Assignment, to_json(assignment).encode(), "assignment") == assignment


def test_the_number_of_ranks_follows_from_the_plan_or_the_devices() -> None:
    assert ranks_for(PLAN, None, CPU) == 2
    assert ranks_for(None, 3, CPU) == 3
    assert ranks_for(None, None, CPU) == 1
    assert ranks_for(None, None, GPUS) == 8
    with pytest.raises(OnecurveError, match="it has 2 ranks, but 3 were asked for"):
        ranks_for(PLAN, 3, CPU)
    with pytest.raises(OnecurveError, match="ranks = 0; it must be at least 1"):
        ranks_for(None, 0, CPU)


def test_precisions_are_ordered_and_unknown_ones_refused() -> None:
    assert read_precisions(["bf16", "fp32"]) == ["fp32", "bf16"]
    with pytest.raises(OnecurveError, match="'int4'"):
        read_precisions(["int4"])
