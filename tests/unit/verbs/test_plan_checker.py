"""Which one-device runs a plan is compared with."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.plan import Plan
from onecurve.device.device import local_cpu
from onecurve.device.world import World
from onecurve.verbs.plan_checker import PlanChecker
from onecurve.verbs.references import Variant


@pytest.mark.parametrize(
    ("loss", "variant"),
    [
        (oc.loss.hugging_face, Variant(1, None)),
        (oc.loss.hugging_face_local_auxiliary, Variant(2, ((0, 3), (3, 4)))),
    ],
)
def test_a_loss_per_micro_batch_is_compared_with_a_device_that_uses_the_same_micro_batches(
    loss: Any, variant: Variant, tmp_path: Path
) -> None:
    job = oc.Job(
        model=lambda: nn.Linear(3, 1),
        loss=loss,
        data=lambda: [(torch.zeros(3), torch.zeros(1))] * 16,
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=1,
    )
    checker = PlanChecker(job, open_data(job), local_cpu(), World(), 1, "fp64", tmp_path, ChangedBuffers())
    assert checker.references.variants([Plan.parse("replicate2 mb(3,1)×2 fp64")]) == [variant]
