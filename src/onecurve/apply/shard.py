"""The axis `shard`: every rank holds a shard of each parameter, of its gradient and of its optimizer state.

A block's parameters are all-gathered for its forward. With zero3 they are freed afterwards and all-gathered again for
backward; with zero2 they stay until backward. Not sharded are scalars and parameters without elements, which
fully_shard refuses, complex parameters, which its reduce-scatter refuses, and in 16 bits the parameters of batch norms,
which stay in float32.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.describe.plan import Sharding
from onecurve.device.step_clock import step_clock


def shard(
    module: nn.Module,
    blocks: Sequence[str],
    mesh: DeviceMesh,
    materialize: Callable[[nn.Module], None],
    sharding: Sharding,
    policy: MixedPrecisionPolicy,
) -> FSDPModule:
    """Materialize and shard the module block by block, so that no rank ever holds more than one unsharded block."""
    settings = {"mesh": mesh, "reshard_after_forward": sharding == "zero3"}
    for name in blocks:
        block = module.get_submodule(name)
        materialize(block)
        _fully_shard(block, policy, settings)
    # This handles the parameters outside the blocks; the blocks' own are already sharded and are skipped.
    materialize(module)
    return _fully_shard(module, policy, settings)


def carry_attributes(root: FSDPModule, attributes: Mapping[str, Mapping[str, Any]]) -> None:
    """Give the gathered parameters, which forward sees, the attributes that the user set on the original ones.

    `attributes`: by the name of the parameter."""
    wanted = {id(p): attributes[name] for name, p in root.named_parameters() if name in attributes}  # type: ignore[attr-defined]
    for parameter_group in parameter_groups(root) if wanted else ():
        parameter_group.wait_for_unshard = _carrying(parameter_group, wanted)


def _carrying(parameter_group: Any, wanted: Mapping[int, Mapping[str, Any]]) -> Callable[[], None]:
    wait = parameter_group.wait_for_unshard

    def wait_for_unshard() -> None:
        wait()
        for parameter in parameter_group.fsdp_params:
            if found := wanted.get(id(parameter.sharded_param)):
                parameter.unsharded_param.__dict__.update(found)

    return wait_for_unshard


def gathered_parameters(root: FSDPModule) -> dict[int, Tensor]:
    """The id of each sharded parameter → the tensor that takes its place in forward, once it was made."""
    parameters = [parameter for group in parameter_groups(root) for parameter in group.fsdp_params]
    return {id(each.sharded_param): each._unsharded_param for each in parameters if hasattr(each, "_unsharded_param")}


def parameter_groups(root: FSDPModule) -> Iterator[Any]:
    """Yield the groups of parameters that fully_shard gathers and reduces together."""
    for module in root.modules():  # type: ignore[attr-defined]
        if isinstance(module, FSDPModule):
            yield from fully_shard.state(module)._fsdp_param_groups  # type: ignore[attr-defined]


def time_communication(root: FSDPModule, cause: str) -> None:
    """Let all-gathers and reductions, with the copies into and out of their buffers, count as `cause` of a step's time.

    fully_shard has no hooks for that, so the methods of each group of parameters are wrapped.
    """
    for parameter_group in parameter_groups(root):
        for method in ("unshard", "wait_for_unshard", "post_backward"):
            setattr(parameter_group, method, _timed(getattr(parameter_group, method), cause))


def _timed(function: Callable[..., Any], cause: str) -> Callable[..., Any]:
    @wraps(function)
    def timed(*arguments: Any, **kwargs: Any) -> Any:
        with step_clock.measure(cause):
            return function(*arguments, **kwargs)

    return timed


# torch warns that a loss which changes the model's output in place loses a hook; `onecurve check` finds such a loss.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


def _fully_shard(module: nn.Module, policy: MixedPrecisionPolicy, settings: dict[str, Any]) -> FSDPModule:
    unsharded = {parameter for parameter in module.parameters() if _stays_whole(parameter)}
    if policy.param_dtype is not None:
        norms = [submodule for submodule in module.modules() if isinstance(submodule, _BatchNorm)]
        unsharded |= {parameter for norm in norms for parameter in norm.parameters(recurse=False)}
    sharded = fully_shard(module, mp_policy=policy, ignored_params=unsharded, **settings)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    return sharded


def _stays_whole(parameter: nn.Parameter) -> bool:
    return parameter.dim() == 0 or parameter.numel() == 0 or parameter.is_complex()
