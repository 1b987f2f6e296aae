"""A linear layer whose weight is a tensor train."""

import math

import torch
from torch import Tensor, nn

from onecurve.nn.tensor_train import full_matrix, initial_scale, is_cheaper_in_full, times_train, train_shape


class TTLinear(nn.Module):
    """A linear layer whose weight is a tensor train: it has fewer parameters than `torch.nn.Linear`.

    This saves memory and communication of parameters, not time. The input is contracted core by core, unless there are
    so many rows that it takes fewer operations, and less memory, to build the matrix for this product.

    Sizes with many divisors save most. A prime size cannot be divided among cores: one of them then has all of it.

    Args:
        in_features: Size of each input sample.
        out_features: Size of each output sample.
        rank: Rank of the tensor train: a higher rank is more exact and has more parameters.
        bias: Add a learned bias. Default: True.
        cores: Number of cores. More cores have fewer parameters and are slower. Default: 2.

    Example::

        layer = oc.nn.TTLinear(512, 2048, rank=16)
        layer(torch.randn(8, 512))
    """

    def __init__(self, in_features: int, out_features: int, rank: int, bias: bool = True, cores: int = 2) -> None:
        super().__init__()
        self.in_features, self.out_features, self.rank = in_features, out_features, rank
        self.train_shape = train_shape(in_features, out_features, rank, cores, "TTLinear")
        self.cores = nn.ParameterList(nn.Parameter(torch.empty(size)) for size in self.train_shape.matrices)
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as torch.nn.Linear does: elements of the matrix have a variance of 1 / (3 · in_features)."""
        for core in self.cores:
            nn.init.normal_(core, std=initial_scale(self.train_shape, 1 / (3 * self.in_features)))
        if self.bias is not None:
            nn.init.uniform_(self.bias, -1 / math.sqrt(self.in_features), 1 / math.sqrt(self.in_features))

    def forward(self, x: Tensor) -> Tensor:
        rows, cores = x.reshape(-1, self.in_features), list(self.cores)
        if is_cheaper_in_full(self.train_shape, len(rows)):
            y = rows @ full_matrix(self.train_shape, cores)
        else:
            y = times_train(rows, self.train_shape, cores)
        y = y.view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def full_weight(self) -> Tensor:
        """The weight as torch.nn.Linear has it, [out_features, in_features]."""
        return full_matrix(self.train_shape, list(self.cores)).T

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, bias={self.bias is not None}"
