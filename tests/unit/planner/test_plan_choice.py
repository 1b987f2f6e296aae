from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.planner.plan_choice import as_text, choose_plan


def test_a_plan_reaches_the_ranks_whole() -> None:
    plan = Plan(Mesh(pipeline=2), 3, 4, stages=(3, 1), layouts={"head.weight": "dim 0"})
    assert choose_plan(as_text(plan), 0, 0) == plan
    assert choose_plan(as_text("pipeline2 mb3×4"), 0, 0) == Plan(Mesh(pipeline=2), 3, 4)
