"""A model of the four, and the embeddings that give it vectors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hvd_compress.embedding import CachedEmbedding, CachedEmbeddingBag, Journal, Lookahead, RowwiseAdagrad
from recommendation.batch import Batch
from recommendation.models import MODELS
from recommendation.packages import Bags
from recommendation.sizes import FULL, SMALL
from recommendation.sources import Batches, Source


@dataclass(frozen=True)
class Settings:
    """What a run is made of.

    Attributes:
        lr: of the dense part's Adam.
        embedding_lr: of the rows' Adagrad.
        cache_rows: slots of a rank's cache.
        lookahead: batches; None for as many as the cache holds.
        sync_precision: of rows and gradients that several ranks share, on the network.
        journal: a folder in which each step is written, and behind whose last one a run goes on.
    """

    model: str = "dlrm"
    full: bool = False
    lr: float = 0.001
    embedding_lr: float = 0.05
    cache_rows: int = 200_000
    lookahead: int | None = None
    sync_precision: str = "exact"
    journal: Path | None = None
    report_every: int = 100
    seed: int = 1


class EmbeddingModel:
    """A model with its embeddings.

    Attributes:
        dense: the model without embeddings, which ranks train by an allreduce of gradients.
        embedding: gives a vector for each feature.
        linear: gives a weight for each id and output; None where the model takes none.
    """

    def __init__(self, source: Source, settings: Settings) -> None:
        torch.manual_seed(settings.seed)
        sizes = replace(
            (FULL if settings.full else SMALL)[settings.model],
            features=source.features,
            numerical=source.numerical,
            outputs=source.outputs,
        )
        model = MODELS[settings.model](sizes)
        self.dense: nn.Module = model
        self.embedding = self._embedding(source, settings, sizes.dim, "vectors")
        self.linear = self._embedding(source, settings, sizes.outputs, "linear") if model.takes_linear else None

    @staticmethod
    def _embedding(source: Source, settings: Settings, dim: int, name: str) -> CachedEmbedding:
        initial = None if name == "vectors" else lambda rows: torch.zeros(len(rows), dim)
        kind = CachedEmbeddingBag if source.bags else CachedEmbedding
        optimizer = RowwiseAdagrad(settings.embedding_lr)
        return kind(source.tables, dim, optimizer=optimizer, seed=settings.seed, initial=initial, name=name)

    def lookahead(self, batches: Batches, settings: Settings, journal: Journal | None) -> Lookahead:
        """Return a loader of batches."""
        embeddings: dict[Any, CachedEmbedding] = {2: self.embedding}
        if self.linear is not None:
            embeddings[itemgetter(2)] = self.linear  # the same ids: a mapping has each key once
        return Lookahead(
            batches,
            embeddings,
            cache_rows=settings.cache_rows,
            lookahead=settings.lookahead,
            sync_precision=settings.sync_precision,
            journal=journal,
        )

    def __call__(self, batch: Batch | Bags) -> torch.Tensor:
        """Return the logits of a batch."""
        linear = None if self.linear is None else _look_up(self.linear, batch)
        logits: torch.Tensor = self.dense(batch.dense, _look_up(self.embedding, batch), linear)
        return logits


def _look_up(embedding: CachedEmbedding, batch: Batch | Bags) -> torch.Tensor:
    """Return (batch, features, dim)."""
    if isinstance(batch, Bags):
        bags: torch.Tensor = embedding(batch.ids, batch.offsets)
        return bags.unsqueeze(1)
    rows: torch.Tensor = embedding(batch.ids)
    return rows
