"""Layers whose weights are tensor trains, which have far fewer parameters than matrices.

Example::

    oc.nn.TTLinear(512, 2048, rank=16)
"""

from onecurve.nn.compress import Compressed, compress
from onecurve.nn.tt_embedding import TTEmbedding
from onecurve.nn.tt_linear import TTLinear

__all__ = ["Compressed", "TTEmbedding", "TTLinear", "compress"]
