"""Buffers that a model's forward changes in training mode, and the plans that they exclude."""

from collections.abc import Sequence
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh

_NAMES_SHOWN = 3


@dataclass(frozen=True)
class ChangedBuffers:
    """Names of the buffers that forward changes, without the running statistics of batch norm."""

    data_independent: tuple[str, ...] = ()
    """Changed alike on all ranks, such as the vectors of spectral norm."""
    data_dependent: tuple[str, ...] = ()
    """Changed by the samples, or by random numbers, of each rank: moving averages of activations, codebooks."""
    not_floating_point: tuple[str, ...] = ()
    """Those of `data_dependent` that are not floating-point, which cannot be averaged."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.data_independent, *self.data_dependent)


def refusal_of_mesh(changed: ChangedBuffers, mesh: Mesh, averages: bool, syncs_batch_norm: bool) -> str:
    """Say why buffers that depend on the data do not allow a mesh; empty if they do.

    `averages`: the job asks for their average. `syncs_batch_norm`: the model has batch norm over all ranks of a round.
    """
    names = changed.data_dependent
    if mesh.data == 1 or not names:
        return ""
    if not averages:
        return differing_buffers(names)
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


def differing_buffers(names: Sequence[str]) -> str:
    """Return the refusal of data-parallel ranks on which forward leaves different values in the buffers."""
    return (
        f"forward changes {buffers_text(names)} depending on the samples, so the data-parallel ranks would hold "
        "different values; set Job(buffers='average') to average them over these ranks after each round, or use a "
        "plan with one data-parallel rank"
    )


def refuse_untraced_differences(names: Sequence[str], averages: bool) -> None:
    """Refuse buffers of which only a real forward showed that it changes them differently on data-parallel ranks."""
    if not names:
        return
    if not averages:
        raise OnecurveError(f"model: {differing_buffers(names)}")
    raise OnecurveError(
        f"model: forward changed {buffers_text(names)} differently on the data-parallel ranks, which its trace did not "
        "show (run with --verbose to see how it ended), so Job(buffers='average') does not include them; change them "
        "in every forward in training mode, or use a plan with one data-parallel rank"
    )


def buffers_text(names: Sequence[str]) -> str:
    """Name a few buffers, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{'buffer' if len(names) == 1 else 'buffers'} {shown}{more}"
