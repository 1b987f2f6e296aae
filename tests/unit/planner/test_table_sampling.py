"""How the ids of a job's tables are counted, and what the planner makes of them."""

import onecurve as oc
from harness import JOBS
from onecurve.data.training_data import open_data
from onecurve.describe.cluster_shorthand import parse_cluster
from onecurve.describe.table_use import RowCosts, RowSeconds
from onecurve.job.script import load_job
from onecurve.params.row_timing import time_rows
from onecurve.planner.planner import Planner
from onecurve.planner.table_sampling import sample_tables

CLICKS = JOBS / "clicks.py"
COSTS = RowCosts(*[RowSeconds(1e-5, 1e-7)] * 3)


def test_distinct_ids_are_counted_in_the_order_of_the_training() -> None:
    job = load_job(CLICKS, [])
    data = open_data(job)
    user, item = sample_tables(job, data, lambda _: COSTS, chunk=64)
    assert (user.name, item.name) == ("user", "item")
    for samples, ids in (*user.seen[:6], user.seen[-1]):
        micro = data.micro(0, samples)
        assert len(set(micro.inputs[0].flatten().tolist())) == ids
    assert user.seen[-1][0] == data.order.size, "all samples were counted"
    assert item.samples == data.steps * job.global_batch
    assert 100 < item.rows <= 301  # the padding counts too


def test_a_plan_says_where_the_rows_are() -> None:
    advice = oc.plan(str(CLICKS), cluster="8xH100")
    assert advice.best is not None
    assert not any("not in these predictions" in hint for hint in advice.hints)
    for estimate in (advice.best, *(other.estimate for other in advice.runners_up)):
        assert estimate.seconds["tables"] > 0
        assert bool(estimate.plan.tables) == (estimate.plan.mesh.size > 1)


def test_rows_are_timed() -> None:
    costs = time_rows(oc.params.Embedding("item", 16))
    assert costs.lookup.of(1_000) > 0
    assert costs.update.of(10_000) > costs.update.of(100)


def test_small_medium_and_large_tables_are_placed_differently() -> None:
    job = load_job(JOBS / "three_tables.py", [])
    planner = Planner(job, open_data(job), parse_cluster("2x8xH100"), ["fp32"], lambda _: None)
    planner.sample_tables(lambda _: COSTS)
    best = planner.best()
    assert best is not None
    assert best.plan.tables == {"weekday": "replicated", "item": "row_sharded", "visit": "served"}
