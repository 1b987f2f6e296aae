"""These tests need the device of tests/fake_accelerator: PYTHONPATH=tests/fake_accelerator pytest tests/accelerator."""

import pytest
import torch

collect_ignore_glob = [] if hasattr(torch, "simulated") else ["test_*.py"]


@pytest.fixture
def report():
    """What the device notices in this process from now on."""
    import fake_accelerator

    report = fake_accelerator.simulator().report
    report.clear()
    return report
