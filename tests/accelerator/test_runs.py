"""Whole runs on the simulated accelerator."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from harness import JOBS, SMALL, onecurve, python, started, torchrun

MIB = 2**20


def entries(folder: Path) -> list[dict]:
    """What all processes have reported."""
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_text().splitlines()]


def test_nothing_is_forked_after_a_thread_or_the_device(tmp_path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    ended = onecurve(
        "run",
        SMALL,
        *("--plan", "replicate2 mb4", "--out", "run"),
        cwd=tmp_path,
        FAKE_ACCELERATOR_DEVICES="2",
        FAKE_ACCELERATOR_REPORT=str(reports),
    )
    assert ended.returncode == 0, ended.stderr
    found = entries(reports)
    forks = [entry for entry in found if entry["kind"] == "fork"]
    assert {(fork["threads"], *fork["devices"]) for fork in forks} == {(1,)}, forks
    assert len(forks) >= 6  # two ranks, each with two loaders
    assert not [entry for entry in found if entry["kind"] in ("unordered", "mixed")]


def test_an_error_is_reported_where_leaving_needs_all_ranks(tmp_path) -> None:
    command = ["run", str(JOBS / "failing.py"), "--plan", "replicate2 mb6", "--out", "run"]
    devices = {"FAKE_ACCELERATOR_DEVICES": "2", "FAKE_ACCELERATOR_LEAVE_TOGETHER": "1"}
    with started(*command, cwd=tmp_path, **devices) as run:
        assert run.stdout is not None
        assert any(line.startswith("step") for line in run.stdout)
        begin = time.monotonic()
        _, errors = run.communicate(timeout=100)
    assert run.returncode == 1
    assert "ValueError: the model is broken" in errors
    assert time.monotonic() - begin < 15  # no rank waits for another one


def test_two_hosts_with_one_device_each(tmp_path) -> None:
    command = [sys.executable, "-m", "onecurve", "run", SMALL, "--out", "two", "--hosts", "2"]
    environment = {**os.environ, "FAKE_ACCELERATOR_DEVICES": "1"}
    hosts = [
        subprocess.Popen(
            [*command, "--plan", "replicate2 mb4"],
            cwd=tmp_path,
            env={**environment, "SLURMD_NODENAME": f"h{number}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [host.communicate(timeout=200)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    assert "2 simulated ranks" in "".join(outputs)


def test_more_ranks_than_devices_are_refused(tmp_path) -> None:
    ended = onecurve("run", SMALL, "--plan", "replicate2 mb4", "--out", "a", cwd=tmp_path, FAKE_ACCELERATOR_DEVICES="1")
    assert ended.returncode != 0
    assert "2 ranks of this host need a device each, but it has 1 of kind simulated" in ended.stderr


def test_a_process_that_sees_one_device_uses_it() -> None:
    program = (
        "from onecurve.device.device import local_device, ranks_on_visible_devices\n"
        "print(local_device(1).torch_device, ranks_on_visible_devices(2))"
    )
    seen = python("-c", program, FAKE_ACCELERATOR_DEVICES="1", CUDA_VISIBLE_DEVICES="3")
    assert seen.stdout.split() == ["simulated:0", "1"], seen.stderr
    assert python("-c", program, FAKE_ACCELERATOR_DEVICES="2").stdout.split() == ["simulated:1", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [40 << 10, 128 << 10])
def test_saving_a_sharded_tensor_needs_64_mib(tmp_path, rows: int) -> None:
    ended = torchrun(2, str(JOBS / "saved_weights.py"), str(tmp_path / "weights.safetensors"), str(rows))
    assert ended.returncode == 0, ended.stderr
    added = [int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith("added")]
    assert len(added) == 2
    assert max(added) <= 64 * MIB
    assert (tmp_path / "weights.safetensors").stat().st_size > rows * 4096


def test_mean_losses_are_accepted_if_products_depend_on_their_rows() -> None:
    ended = python(str(JOBS / "mean_losses.py"), "1", timeout=280, FAKE_ACCELERATOR_ORDER_BY_ROWS="1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "accepted 4 of 4, refused 4 of 4"


def test_a_skipped_first_step_leaves_no_momentum() -> None:
    """The first batch has no finite loss; then SGD goes on as if it had not been."""
    import onecurve as oc

    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))

    class Points:
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int):
            return x[index], x[index].sum()[None]

    optimizer = oc.SGD(lr=0.1, momentum=0.9)
    job = oc.Job(
        model=lambda: torch.nn.Linear(3, 1),
        loss=oc.loss.mse,
        data=Points,
        optimizer=optimizer,
        global_batch=8,
        steps=4,
    )
    weights = []
    for reads_at_once in (False, True):
        with oc.prepare(job, "mb8") as run:
            start = {name: value.detach().cpu() for name, value in run.model.state_dict().items()}
            batches = []
            for number, batch in enumerate(run):
                if number == 0:
                    batch.rounds[0].target.fill_(float("nan"))
                batches.append(batch.rounds[0])
                report = run.step(batch)
                if reads_at_once:
                    assert (report.loss == report.loss) == (number > 0)
            weights.append({name: value.detach().cpu() for name, value in run.model.state_dict().items()})
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    expected = torch.nn.Linear(3, 1)
    expected.load_state_dict(start)
    sgd = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for micro in batches[1:]:
        sgd.zero_grad()
        (expected(micro.inputs) - micro.target).square().mean().backward()
        sgd.step()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(weights[0][name], value)
