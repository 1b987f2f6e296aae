"""An embedding whose rows are a tensor train."""

import torch
from torch import Tensor, nn

from onecurve.nn.tensor_train import full_matrix, initial_scale, train_rows, train_shape


class TTEmbedding(nn.Module):
    """An embedding whose rows are a tensor train: it has far fewer parameters than `torch.nn.Embedding`.

    Args:
        num_embeddings: Number of rows.
        embedding_dim: Size of each row.
        rank: Rank of the tensor train: a higher rank is more exact and has more parameters.
        cores: Number of cores. More cores have fewer parameters and are slower. Default: 2.

    Example::

        layer = oc.nn.TTEmbedding(50_000, 512, rank=16)
        layer(torch.tensor([[1, 2], [3, 4]]))
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, rank: int, cores: int = 2) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.rank = num_embeddings, embedding_dim, rank
        self.train_shape = train_shape(num_embeddings, embedding_dim, rank, cores, "TTEmbedding", padded=True)
        self.cores = nn.ParameterList(nn.Parameter(torch.empty(size)) for size in self.train_shape.matrices)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize as torch.nn.Embedding does: elements have a variance of 1."""
        for core in self.cores:
            nn.init.normal_(core, std=initial_scale(self.train_shape, 1.0))

    def forward(self, indices: Tensor) -> Tensor:
        rows = train_rows(indices.reshape(-1), self.train_shape, list(self.cores))
        return rows.view(*indices.shape, self.embedding_dim)

    def full_weight(self) -> Tensor:
        """The weight as torch.nn.Embedding has it, [num_embeddings, embedding_dim]."""
        return full_matrix(self.train_shape, list(self.cores))[: self.num_embeddings]

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}, rank={self.rank}"
