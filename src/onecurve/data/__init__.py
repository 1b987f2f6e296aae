"""Data in files, on this host or wherever fsspec reaches, as sources of samples for a job or for plain PyTorch.

Each source is a map-style dataset, with `len` and `[i]`. It needs an index, which `onecurve index PATH` makes once. A
job reads its samples in one order, whatever the number of ranks: pieces of the data are shuffled, and the samples of
some pieces, a window, among each other.

Example::

    data = lambda: oc.data.jsonl("reviews/").map(lambda line: (encode(line["text"]), line["stars"]))
    oc.Job(model=MyModel, data=data, loss=oc.loss.cross_entropy, optimizer=oc.AdamW(), global_batch=256, epochs=1)

How samples become batches: the order is a pure function of (seed, position), see order.py; loader.py reads this rank's
share of the samples through torch's DataLoader.
"""

from onecurve.data.sources import folder, jsonl, mix, parquet, prepared, stream, tar, tfrecord, tokens

__all__ = ["folder", "jsonl", "mix", "parquet", "prepared", "stream", "tar", "tfrecord", "tokens"]
