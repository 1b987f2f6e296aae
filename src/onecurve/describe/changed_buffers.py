"""Buffers and parameters that a model's forward changes in training mode, and the plans that they exclude."""

from collections.abc import Sequence
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh

_NAMES_SHOWN = 3


@dataclass(frozen=True)
class ChangedBuffers:
    """Names of the buffers that forward changes, without the running statistics of batch norm; and of parameters."""

    data_independent: tuple[str, ...] = ()
    """Changed alike on all ranks, such as the vectors of spectral norm."""
    data_dependent: tuple[str, ...] = ()
    """Changed by the samples, or by random numbers, of each rank: moving averages of activations, codebooks."""
    not_floating_point: tuple[str, ...] = ()
    """Those of `data_dependent` that are not floating-point, which cannot be averaged."""
    parameters: tuple[str, ...] = ()
    """Parameters that forward writes, alike on all ranks: a momentum encoder, weights that are clipped."""
    data_dependent_parameters: tuple[str, ...] = ()
    """Parameters that forward writes depending on the samples, such as an embedding with max_norm."""
    normalized_parameters: tuple[str, ...] = ()
    """Those of `data_dependent_parameters` of which forward normalizes the rows that it looks up, and nothing else: in
    several rounds it does the same."""
    reads_values: bool = False
    """True if forward reads values that depend on the samples, or on random numbers, so that it may take branches."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.data_independent, *self.data_dependent)

    @property
    def depends_on_rounds(self) -> bool:
        """True if the result depends on the number of rounds per step."""
        return bool(self.names or self.parameters or self.data_dependent_parameters)


def refusal_of_mesh(changed: ChangedBuffers, mesh: Mesh, averages: bool, syncs_batch_norm: bool) -> str:
    """Say why buffers that depend on the data do not allow a mesh; empty if they do.

    `averages`: the job asks for their average. `syncs_batch_norm`: the model has batch norm over all ranks of a round.
    """
    if reason := _refusal_of_parameters(changed, mesh):
        return reason
    names = changed.data_dependent
    if mesh.data == 1 or not names:
        return ""
    if not averages:
        return (
            f"forward changes {buffers_text(names)} depending on the samples, so the data-parallel ranks would hold "
            "different values; set Job(buffers='average') to average them over these ranks after each round, or use a "
            "plan with one data-parallel rank"
        )
    if changed.not_floating_point:
        return (
            f"forward changes {buffers_text(changed.not_floating_point)} depending on the samples, and only "
            "floating-point buffers can be averaged over data-parallel ranks; use a floating-point buffer, or a plan "
            "with one data-parallel rank"
        )
    if mesh.pipeline > 1:
        return (
            f"{buffers_text(names)} cannot be averaged after each round of a pipeline; use 'pipeline' with one "
            "data-parallel rank, or leave 'pipeline' out"
        )
    if syncs_batch_norm:
        return (
            f"{buffers_text(names)} can be averaged over data-parallel ranks only if batch norm also takes its "
            "statistics per rank; set Job(batch_norm='local'), or use a plan with one data-parallel rank"
        )
    return ""


def _refusal_of_parameters(changed: ChangedBuffers, mesh: Mesh) -> str:
    written = (*changed.parameters, *changed.data_dependent_parameters)
    if written and (mesh.shard > 1 or mesh.pipeline > 1):
        axis = "shard" if mesh.shard > 1 else "pipeline"
        return (
            f"forward writes into {parameters_text(written)}, and under '{axis}' it sees copies of parameters, or only "
            f"some of them; use a plan without '{axis}', such as "
            + ("one with 'replicate'" if not changed.data_dependent_parameters else "one device")
        )
    if changed.data_dependent_parameters and mesh.data > 1:
        return (
            f"forward writes into {parameters_text(changed.data_dependent_parameters)} depending on the samples, so "
            "the data-parallel ranks would hold different weights; use a plan with one data-parallel rank (for an "
            "embedding with max_norm: normalize the looked-up rows in forward instead)"
        )
    return ""


def refusal_of_rounds(changed: ChangedBuffers, rounds: int, averages: bool) -> str:
    """Say why what forward changes does not allow several rounds per step; empty if it does.

    `averages`: the job accepts that buffers take each round's samples by themselves."""
    if rounds == 1:
        return ""
    several = [name for name in changed.data_dependent_parameters if name not in changed.normalized_parameters]
    if written := (*changed.parameters, *several):
        return (
            f"forward writes into {parameters_text(written)} once per round, and a step of {rounds} rounds "
            "would do it several times; use a plan with one round per step"
        )
    if changed.data_dependent and not averages:
        return (
            f"forward changes {buffers_text(changed.data_dependent)} depending on the samples of a round, so a step of "
            f"{rounds} rounds does not compute what the whole batch does; use a plan with one round per step, or "
            "accept it with Job(buffers='average')"
        )
    return ""


def refusal_of_whole(reason: str, mesh: Mesh) -> str:
    """Say why a model whose parameters must stay as its constructor made them does not allow a mesh; empty if it does.

    `reason`: why they must stay; empty if they need not."""
    axes = [axis for axis in ("shard", "tensor", "pipeline") if getattr(mesh, axis) > 1]
    if not reason or not axes:
        return ""
    return f"{reason}; '{axes[0]}' would take that apart: use a plan with 'replicate', or one device"


def parameters_text(names: Sequence[str]) -> str:
    """Name a few parameters, and how many more there are."""
    return _text("parameter", names)


def refuse_untraced_differences(names: Sequence[str]) -> None:
    """Refuse buffers of which only a real step showed that they differ between data-parallel ranks."""
    if names:
        raise OnecurveError(
            f"model: after the forward of the first step, {buffers_text(names)} differed between the data-parallel "
            "ranks, which the trace of the model did not show (--verbose logs why); change buffers with torch "
            "operations, in every forward in training mode, and set Job(buffers='average') to average them, or use a "
            "plan with one data-parallel rank"
        )


def buffers_text(names: Sequence[str]) -> str:
    """Name a few buffers, and how many more there are."""
    return _text("buffer", names)


def _text(kind: str, names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{kind}{'s' * (len(names) > 1)} {shown}{more}"
