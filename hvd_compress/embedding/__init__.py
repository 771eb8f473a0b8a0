"""Embedding tables behind a cache that looks ahead: Bagpipe (papers: chapter 5), exact to the bit.

    embedding = CachedEmbeddingBag([1_000_000, 50_000], 16, optimizer=RowwiseAdagrad(0.05))
    loader = Lookahead(loader, {"categories": embedding}, cache_rows=200_000)
    for batch in loader:
        loss(model(batch)).backward()
        optimizer.step()

docs/embedding.md says when, how and at what cost.
"""

from hvd_compress.embedding.journal import Journal
from hvd_compress.embedding.loader import Lookahead
from hvd_compress.embedding.modules import CachedEmbedding, CachedEmbeddingBag
from hvd_compress.embedding.optimizers import SGD, Adagrad, Adam, RowOptimizer, RowwiseAdagrad
from hvd_compress.embedding.options import Rules
from hvd_compress.embedding.servers import Servers
from hvd_compress.embedding.serving import serve

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "CachedEmbedding",
    "CachedEmbeddingBag",
    "Journal",
    "Lookahead",
    "RowOptimizer",
    "RowwiseAdagrad",
    "Rules",
    "Servers",
    "serve",
]
