import pytest

from onecurve.describe.cluster import DeviceSpec
from onecurve.describe.constants import Constants
from onecurve.describe.profile import ComputeLoad
from onecurve.estimate import compute

DEVICE = DeviceSpec(
    name="d",
    kind="cuda",
    memory=10**9,
    memory_bandwidth=1e9,
    flops={"fp32": 1e12, "bf16": 4e12, "fp8": 8e12},
    matmul_efficiency=0.5,
    attention_efficiency=0.25,
)
CONSTANTS = Constants(matmul_efficiency=0.5, attention_efficiency=0.1, memory_efficiency=0.2)


def test_matrix_products_attention_and_bytes_are_added() -> None:
    load = ComputeLoad({"matrix": 10**9, "attention": 10**9}, bytes_moved=10**6)
    # 1e9 FLOPs at 1e12 · 0.5 · 0.5, 1e9 at 1e12 · 0.25 · 0.1, 1e6 bytes at 1e9 · 0.2 per second
    assert compute.seconds(load, DEVICE, "fp32", CONSTANTS) == pytest.approx(4e-3 + 40e-3 + 5e-3)


def test_convolutions_run_at_the_speed_of_matrix_products() -> None:
    one, other = ComputeLoad({"matrix": 10**9}), ComputeLoad({"convolution": 10**9})
    assert compute.seconds(one, DEVICE, "bf16", CONSTANTS) == compute.seconds(other, DEVICE, "bf16", CONSTANTS) == 1e-3


def test_attention_stays_in_bf16_below_16_bits() -> None:
    load = ComputeLoad({"attention": 10**9})
    assert compute.seconds(load, DEVICE, "fp8", CONSTANTS) == pytest.approx(10e-3)
    assert compute.seconds(load, DEVICE, "bf16", CONSTANTS) == pytest.approx(10e-3)
    assert compute.seconds(load, DEVICE, "fp32", CONSTANTS) == pytest.approx(40e-3)


def test_the_measured_speed_depends_on_the_size_of_one_product() -> None:
    measured = DeviceSpec(
        name="c",
        memory_bandwidth=1e9,
        flops={"fp32": 1e12},
        matmul_rates={"fp32": {"100": 1e11, "1000": 1e12}},
    )
    plain = Constants(matmul_efficiency=1.0)
    flops = 10 * 2 * 100**3
    assert compute.seconds(ComputeLoad({"matrix": flops}, matmuls=10), measured, "fp32", plain) == pytest.approx(
        flops / 1e11
    )
    assert compute.seconds(ComputeLoad({"matrix": flops}), measured, "fp32", plain) == pytest.approx(flops / 1e12)
