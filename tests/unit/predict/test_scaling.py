"""Straight lines through two traces."""

from onecurve.describe.costs import Costs, Trace
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Collective, Load, ModuleProfile, Profile, Work
from onecurve.predict.scaling import Profiles


def profile(samples: int, cut: int = 1) -> Profile:
    """A block that moves 100 bytes of weights and 10 for each sample; half of its FLOPs can be cut."""
    flops = 8 * samples // 2 + 8 * samples // 2 // cut
    sent = (Collective("all_reduce", 6 * samples, "forward"),) if cut > 1 else ()
    work = Work(Load({"matrix": flops}, 100 + 10 * samples, 7 * cut), Load({"matrix": 2 * flops}, 0, 9), sent)
    block = ModuleProfile(
        ("b.0", "b.1"), 100 // cut, 100 // cut, 0, 0, work, activation_bytes=20 * samples, input_bytes=2 * samples
    )
    return Profile(samples, (block,), ModuleProfile((), 10, 10, 0, 0, Work(), 4 * samples, 0), 0, 2)


COSTS = Costs({"fp32": Trace(profile(4), profile(8), {False: profile(8, 2)})}, 64, 10)


def test_along_samples() -> None:
    found = Profiles(COSTS).of(Plan(), 3)
    assert found.samples == 3
    assert found.blocks[0].work.forward == Load({"matrix": 24}, 130, 7)
    assert (found.blocks[0].activation_bytes, found.blocks[0].parameters, found.outside.activation_bytes) == (
        60,
        100,
        12,
    )


def test_along_tensor_and_samples() -> None:
    found = Profiles(COSTS).of(Plan(Mesh(tensor=4)), 16)
    work = found.blocks[0].work
    assert work.forward.flops == {"matrix": 64 + 64 // 4}
    assert work.forward.operations == 14
    assert work.collectives == (Collective("all_reduce", 96, "forward"),)
    assert found.blocks[0].parameters == 25


def test_samples_of_unequal_length_do_not_cost_less_than_nothing() -> None:
    longer = Costs({"fp32": Trace(profile(4), profile(40))}, 64, 10)
    assert Profiles(longer).of(Plan(), 1).blocks[0].work.forward.bytes_moved > 0
