"""Embedding tables: rows that belong to ids, of which a step uses only a few.

The modules that a model uses are `Embedding` and `EmbeddingBag`, with the optimizers `SGD`, `RowwiseAdagrad` and
`Adam`. The rows are stored on the ranks of a run, replicated or divided by the hash of their id, or on row servers.

Example::

    table = oc.params.EmbeddingBag("user", 64, mode="mean", optimizer=oc.params.RowwiseAdagrad(lr=0.05))
    print(table(torch.tensor([[7, 12], [10**15, -3]])).shape)  # torch.Size([2, 64])
"""

from onecurve.job.embedding import Embedding, EmbeddingBag
from onecurve.job.row_optimizer import SGD, Adam, RowwiseAdagrad

__all__ = ["SGD", "Adam", "Embedding", "EmbeddingBag", "RowwiseAdagrad"]
