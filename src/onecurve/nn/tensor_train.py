"""Matrices as tensor trains (Oseledets 2011; Novikov et al. 2015, arXiv:1509.06569).

Rows and columns are numbered by several digits each: a matrix of m₁m₂ rows and n₁n₂ columns has the element
((i₁, i₂), (j₁, j₂)) = Σₖ core₁[i₁, j₁, k] · core₂[k, i₂, j₂]. A core with ranks r and r' is stored as a matrix of r·m
rows and n·r' columns, as it is multiplied: that can be sharded along its rows like any other matrix.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class TrainShape:
    """The digits of rows and columns, and the ranks between the cores."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    ranks: tuple[int, ...]
    """One more than cores; the first and the last are 1."""

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """The shape of each core as a matrix."""
        return [
            (self.ranks[k] * m, n * self.ranks[k + 1])
            for k, (m, n) in enumerate(zip(self.rows, self.columns, strict=True))
        ]


def train_shape(rows: int, columns: int, rank: int, cores: int, name: str, *, padded: bool = False) -> TrainShape:
    """The shape of a tensor train for a matrix. `padded`: it may have more rows than the matrix. `name`: for errors."""
    if min(rows, columns, rank) < 1 or cores < 2:
        raise OnecurveError(
            f"{name}: sizes and rank must be at least 1 and cores at least 2, got {rows}, {columns}, rank {rank} and "
            f"{cores} cores"
        )
    of_rows, of_columns = padded_digits(rows, cores) if padded else digits(rows, cores), digits(columns, cores)
    ranks = [1]
    for k in range(1, cores):
        left = math.prod(of_rows[:k]) * math.prod(of_columns[:k])
        right = math.prod(of_rows[k:]) * math.prod(of_columns[k:])
        ranks.append(min(rank, left, right))  # more would be redundant
    return TrainShape(of_rows, of_columns, (*ranks, 1))


def digits(size: int, count: int) -> tuple[int, ...]:
    """Factors of a size, as equal as possible, the largest last."""
    factors = [1] * count
    rest, divisor, primes = size, 2, []
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            primes.append(divisor)
            rest //= divisor
        divisor += 1
    if rest > 1:
        primes.append(rest)
    for prime in sorted(primes, reverse=True):
        factors[factors.index(min(factors))] *= prime
    return tuple(sorted(factors))


def padded_digits(size: int, count: int) -> tuple[int, ...]:
    """Factors, as equal as possible, whose product is at least the size."""
    base = math.ceil(size ** (1 / count))
    factors = [base] * count
    for k in range(count):
        while math.prod(factors) // factors[k] * (factors[k] - 1) >= size:
            factors[k] -= 1
    return tuple(sorted(factors))


def times_train(x: Tensor, shape: TrainShape, cores: Sequence[Tensor]) -> Tensor:
    """`x` [N, rows] times the matrix [rows, columns] of a tensor train, core by core."""
    samples = len(x)
    done = 1
    for k, core in enumerate(cores):
        m, n, before, after = shape.rows[k], shape.columns[k], shape.ranks[k], shape.ranks[k + 1]
        rest = math.prod(shape.rows[k + 1 :])
        # [samples, digits done, rank, digit, digits to do] → contract rank and digit
        x = x.reshape(samples * done, before * m, rest).transpose(1, 2).reshape(-1, before * m) @ core
        x = x.view(samples * done, rest, n, after).permute(0, 2, 3, 1)
        done *= n
    return x.reshape(samples, done)


def train_rows(indices: Tensor, shape: TrainShape, cores: Sequence[Tensor]) -> Tensor:
    """Rows of the matrix of a tensor train: [N] → [N, columns]."""
    place = math.prod(shape.rows)
    found = torch.ones(len(indices), 1, 1, dtype=cores[0].dtype, device=cores[0].device)
    for k, core in enumerate(cores):
        m, n, before, after = shape.rows[k], shape.columns[k], shape.ranks[k], shape.ranks[k + 1]
        place //= m
        digit = indices // place % m
        chosen = core.view(before, m, n * after).transpose(0, 1)[digit]  # [N, rank, columns · next rank]
        found = torch.bmm(found, chosen).view(len(indices), -1, after)
    return found.reshape(len(indices), -1)


def full_matrix(shape: TrainShape, cores: Sequence[Tensor]) -> Tensor:
    """The matrix of a tensor train, [rows, columns]."""
    found = cores[0].new_ones(1, 1)
    for core, rank in zip(cores, shape.ranks, strict=False):
        found = found.reshape(-1, rank) @ core.view(rank, -1)
    count = len(shape.rows)
    pairs = found.view([size for pair in zip(shape.rows, shape.columns, strict=True) for size in pair])
    in_order = pairs.permute(*range(0, 2 * count, 2), *range(1, 2 * count, 2))
    return in_order.reshape(math.prod(shape.rows), math.prod(shape.columns))


def is_cheaper_in_full(shape: TrainShape, samples: int) -> bool:
    """True if it is faster to build the matrix and multiply by it than to multiply core by core. With many samples it
    also takes less memory: what is between the cores is then larger than the matrix. Each product with a core is
    counted twice, because what comes from it is copied into another order."""
    of_train, of_building, done, built = 0, 0, 1, 1
    for k, (m, n) in enumerate(zip(shape.rows, shape.columns, strict=True)):
        before, after = shape.ranks[k], shape.ranks[k + 1]
        of_train += done * math.prod(shape.rows[k + 1 :]) * before * m * n * after
        of_building += built * before * m * n * after
        done, built = done * n, built * m * n
    return of_building + samples * math.prod(shape.rows) * math.prod(shape.columns) < 2 * samples * of_train


@torch.no_grad()
def tensor_train_of(matrix: Tensor, shape: TrainShape) -> list[Tensor]:
    """The cores that approximate a matrix [rows, columns], by TT-SVD: one truncated SVD after the other."""
    count = len(shape.rows)
    rest = matrix.double().reshape(*shape.rows, *shape.columns)
    rest = rest.permute([axis for k in range(count) for axis in (k, count + k)])  # digits of rows and columns in turn
    cores, before = [], 1
    for k, (m, n) in enumerate(zip(shape.rows, shape.columns, strict=True)):
        if k == count - 1:
            core, after = rest.reshape(before * m * n, 1), 1
        else:
            after = shape.ranks[k + 1]
            left, values, right = torch.linalg.svd(rest.reshape(before * m * n, -1), full_matrices=False)
            core, rest = left[:, :after], values[:after, None] * right[:after]
        cores.append(core.reshape(before * m, n * after).to(matrix.dtype))
        before = after
    return cores


def initial_scale(shape: TrainShape, variance: float) -> float:
    """The standard deviation of cores with which the elements of the matrix have a variance."""
    return math.pow(variance / math.prod(shape.ranks), 0.5 / len(shape.rows))
