"""Blocks are compiled for the shapes that they have, and what torch.compile refuses is explained."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.exc
from torch import nn

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.device.compilation import compile_blocks, explained_compilation, uncompiled


class Other(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


@pytest.mark.parametrize(
    ("blocks", "dynamic"),
    [
        ([nn.Linear(4, 4), nn.Linear(4, 4)], [None, None]),
        ([nn.Linear(4, 4), nn.Linear(4, 8), nn.Linear(8, 8)], [False, False, False]),
        ([nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(8, affine=False)], [False, False]),
        ([nn.Linear(4, 8), Other(8, 4), Other(8, 4)], [None, None, None]),
    ],
    ids=["equal", "other parameters", "other buffers", "other classes"],
)
def test_only_blocks_of_one_class_with_several_shapes_are_compiled_for_each_shape(
    blocks: list[nn.Module], dynamic: list[bool | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[nn.Module, bool | None] = {}
    monkeypatch.setattr(nn.Module, "compile", lambda self, dynamic: asked.update({self: dynamic}))
    config: Any = torch._dynamo.config
    with config.patch(recompile_limit=8):
        compile_blocks(blocks)
        limit = config.recompile_limit
    assert [asked[block] for block in blocks] == dynamic
    assert limit == {None: 8, False: 8 * len({str(block) for block in blocks})}[dynamic[0]]


def test_an_error_of_the_compiler_names_the_plan_and_others_pass() -> None:
    def failing(error: Exception) -> Callable[[], None]:
        def fail() -> None:
            with explained_compilation("mb8 compile"):
                raise error

        return fail

    of_compiler = torch._dynamo.exc.InternalTorchDynamoError("no such kernel\n  more")
    in_forward = UserCodeError("model: forward raised")
    in_forward.__cause__ = of_compiler
    for error in (of_compiler, in_forward):
        with pytest.raises(OnecurveError, match=r"plan mb8 compile: torch.compile cannot .* \(.*: no such kernel\)"):
            failing(error)()
    with pytest.raises(ValueError, match="own"):
        failing(ValueError("own"))()


def test_trials_run_eagerly() -> None:
    def is_compiled(x: torch.Tensor) -> torch.Tensor:
        return x + torch.compiler.is_compiling()

    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(is_compiled, backend="eager")
    with uncompiled():
        assert compiled(torch.zeros(1)).item() == 0
    assert compiled(torch.zeros(1)).item() == 1
