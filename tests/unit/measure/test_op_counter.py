"""FLOPs, bytes, operations and collectives of small computations, against hand-worked numbers."""

import torch
import torch.distributed._functional_collectives as functional
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.describe.profile import Collective, ComputeLoad
from onecurve.measure.fake_process_group import fake_process_group
from onecurve.measure.op_counter import OpCounter
from onecurve.model.fake_operations import register_fake_operations

M, K, N = 6, 8, 10
FLOAT = 4  # bytes


def test_a_matrix_product() -> None:
    mode = FakeTensorMode()
    with mode:
        a, b = torch.zeros(M, K), torch.zeros(K, N)
        with OpCounter(mode) as counter:
            a @ b
    sizes = FLOAT * (M * K + K * N + M * N)
    assert counter.work.forward == ComputeLoad({"matrix": 2 * M * K * N}, sizes, operations=1, matmuls=1)
    assert counter.work.backward == ComputeLoad()
    assert counter.matmul_output_bytes == FLOAT * M * N


def test_backward_is_counted_separately_and_has_two_products() -> None:
    mode = FakeTensorMode()
    with mode:
        a, b = torch.zeros(M, K, requires_grad=True), torch.zeros(K, N, requires_grad=True)
        gradient = torch.zeros(M, N)
        with OpCounter(mode) as counter:
            product = a @ b
            counter.when = "backward"
            product.backward(gradient)
    flops = 2 * M * K * N
    assert counter.work.forward.flops == {"matrix": flops}
    assert counter.work.backward.flops == {"matrix": 2 * flops}
    assert (counter.work.forward.matmuls, counter.work.backward.matmuls) == (1, 2)
    assert counter.work.flops == 3 * flops
    assert counter.matmul_output_bytes == FLOAT * M * N  # of the forward only


def test_an_elementwise_operation_moves_bytes_and_has_no_flops() -> None:
    mode = FakeTensorMode()
    with mode:
        x = torch.zeros(M, K)
        with OpCounter(mode) as counter:
            x + 1
    assert counter.work.forward == ComputeLoad({}, 2 * x.nbytes, operations=1, matmuls=0)
    assert counter.matmul_output_bytes == 0


def test_an_argument_that_is_used_twice_is_read_once() -> None:
    mode = FakeTensorMode()
    with mode:
        x = torch.zeros(M, K)
        with OpCounter(mode) as counter:
            x * x
    assert counter.work.forward.bytes_moved == 2 * x.nbytes


def test_convolutions_and_attention_are_counted_by_kind() -> None:
    mode = FakeTensorMode()
    with mode:
        image, weight = torch.zeros(2, 3, 8, 8), torch.zeros(5, 3, 3, 3)
        query, key = torch.zeros(2, 4, 16, 8), torch.zeros(2, 4, 12, 8)
        with OpCounter(mode) as counter:
            F.conv2d(image, weight)
            F.scaled_dot_product_attention(query, key, key)
    assert counter.work.forward.flops == {
        "convolution": 2 * 2 * 5 * 6 * 6 * 3 * 3 * 3,
        "attention": 2 * (2 * 2 * 4 * 16 * 12 * 8),  # scores, then values
    }


def test_only_operations_on_fake_tensors_of_the_mode_count() -> None:
    mode, other = FakeTensorMode(), FakeTensorMode()
    with other:
        foreign = torch.zeros(M, K)
    with OpCounter(mode) as counter:
        torch.zeros(M, K) + 1
        with other:
            foreign + 1
    assert counter.work.forward == ComputeLoad()


def test_collectives_are_counted_with_the_bytes_of_the_full_tensor() -> None:
    mode = FakeTensorMode()
    with fake_process_group(2) as mesh, mode:
        x = torch.zeros(M, K)
        group = mesh.get_group()
        with OpCounter(mode) as counter:
            reduced: Tensor = functional.all_reduce(x, "sum", group)
            functional.all_gather_single(x, 0, group)
            counter.when = "backward"
            functional.reduce_scatter_single(reduced, "sum", 0, group)
    assert counter.work.collectives == (
        Collective("all_reduce", x.nbytes, "forward"),
        Collective("all_gather", 2 * x.nbytes, "forward"),
        Collective("reduce_scatter", x.nbytes, "backward"),
    )
    assert counter.work.forward.flops == {}


def test_grouped_products_count_every_row_once() -> None:
    register_fake_operations()
    mode, groups = FakeTensorMode(), 3
    with mode:
        rows = torch.zeros(M, K, requires_grad=True)
        experts = torch.zeros(groups, K, N, requires_grad=True)
        ends = torch.zeros(groups, dtype=torch.int32)
        with OpCounter(mode) as counter:
            product = F.grouped_mm(rows, experts, offs=ends)
            counter.when = "backward"
            product.backward(torch.zeros(M, N))
    assert product.shape == (M, N)
    assert rows.grad is not None
    assert rows.grad.shape == rows.shape
    assert experts.grad is not None
    assert experts.grad.shape == experts.shape
    assert counter.work.forward.flops == {"matrix": 2 * M * K * N}
    assert counter.work.backward.flops == {"matrix": 2 * 2 * M * K * N}


def test_reading_the_device_of_a_tensor_is_no_operation() -> None:
    """Autograd does it for every gradient of a fake tensor. It would count as a kernel that reads the tensor."""
    mode = FakeTensorMode()
    with mode:
        a = torch.zeros(M, K)
        with OpCounter(mode) as counter:
            torch.ops.prim.device.default(a)
    assert counter.work.forward == ComputeLoad()
