from onecurve.describe.profile import ComputeLoad, ModuleProfile, Profile, Work

LOAD = ComputeLoad({"matrix": 5, "attention": 2})
BLOCK = ModuleProfile(
    names=("b.0", "b.1", "b.2"),
    parameters=10,
    trainable=8,
    parameter_bytes=40,
    trainable_bytes=32,
    work=Work(LOAD, ComputeLoad({"matrix": 11})),
    activation_bytes=100,
    input_bytes=1,
)
OUTSIDE = ModuleProfile(
    names=(),
    parameters=7,
    trainable=7,
    parameter_bytes=28,
    trainable_bytes=28,
    work=Work(ComputeLoad({"matrix": 1})),
    activation_bytes=50,
    input_bytes=0,
)
PROFILE = Profile(
    samples=1, blocks=(BLOCK,), outside=OUTSIDE, shared_activation_bytes=1000, optimizer_tensors=2, order=(0, 0, 0)
)


def test_totals_count_every_block_and_what_is_outside_once() -> None:
    assert (BLOCK.count, OUTSIDE.count) == (3, 1)
    assert PROFILE.parameters == 3 * 10 + 7
    assert PROFILE.optimizer_bytes == 2 * (3 * 32 + 28)
    assert PROFILE.activation_bytes == 1000 + 3 * 100 + 50
    assert PROFILE.flops == 3 * (7 + 11) + 1
    assert (PROFILE.forward_flops("matrix"), PROFILE.forward_flops("attention")) == (3 * 5 + 1, 3 * 2)
