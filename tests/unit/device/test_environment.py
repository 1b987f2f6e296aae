"""Which process of srun or mpirun this one is."""

import os

import pytest

from onecurve.device.environment import LauncherTask, is_rank_of_launcher

SLURM = {
    "SLURM_PROCID": "4",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
    "SLURM_JOB_ID": "12",
    "SLURM_STEP_ID": "0",
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMIX_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)


def use(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> LauncherTask | None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return LauncherTask.of_environment()


def test_several_tasks_per_node_are_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    task = use(monkeypatch, SLURM)
    assert task == LauncherTask(rank=4, size=7, local_rank=0, local_size=2, hosts=4, name="slurm-12-0-0")
    assert is_rank_of_launcher()


def test_the_task_that_is_alone_on_its_node_is_a_rank_too(monkeypatch: pytest.MonkeyPatch) -> None:
    task = use(monkeypatch, SLURM | {"SLURM_PROCID": "6", "SLURM_NODEID": "3"})
    assert task is not None
    assert (task.local_size, task.is_keeper) == (1, False)


def test_one_task_on_each_node_is_a_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    task = use(monkeypatch, SLURM | {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "1(x5)"})
    assert task is not None
    assert task.is_keeper
    assert not is_rank_of_launcher()


def test_a_job_that_was_queued_again_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    task = use(monkeypatch, SLURM | {"SLURM_RESTART_COUNT": "2"})
    assert task is not None
    assert task.name == "slurm-12-0-2"


def test_a_batch_script_or_a_single_task_is_no_part_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert use(monkeypatch, {"SLURM_PROCID": "0", "SLURM_JOB_ID": "12"}) is None
    assert use(monkeypatch, SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"} | FIRST) is None


FIRST = {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}


def test_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "prterun-h0-12@1",
    }
    task = use(monkeypatch, variables)
    assert task == LauncherTask(rank=1, size=2, local_rank=1, local_size=2, hosts=1, name="mpirun-prterun-h0-12-1")
    assert is_rank_of_launcher()
