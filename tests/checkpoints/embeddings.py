"""One rank's training of an embedding, for its checkpoint and its journal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hvd_compress.embedding import Adam, CachedEmbedding, Journal, Lookahead
from hvd_compress.engines.base import Engine

State = dict[str, Any]

SAVED_AT, STEPS = 5, 8


class Tables:
    """An embedding with the states of its optimizer, and a dense part that each step changes.

    Settings are powers of two, so that products are exact. Steps after the checkpoint also use rows that no step before
    it has used, whose initial values follow from the seed.
    """

    def __init__(self, engine: Engine, folder: Path | None = None) -> None:
        """`folder`: of a journal."""
        self._engine = engine
        self.module = CachedEmbedding(20, 2, optimizer=Adam(0.125, betas=(0.5, 0.75)))
        self.dense = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.dense.weight)
        self._journal = None if folder is None else Journal(folder, {"dense": self.dense}, every=2)

    def loader(self, steps: range) -> Lookahead:
        """Return the loader of some batches, by their numbers."""
        batches = [torch.tensor([(step * 3 + self._engine.rank) % 20, step % 7]) for step in steps]
        sources: dict[Any, CachedEmbedding] = {_ids: self.module}
        return Lookahead(batches, sources, cache_rows=20, lookahead=3, engine=self._engine, journal=self._journal)

    def train(self, loader: Lookahead) -> State:
        """Train on all batches of a loader; return the state after them."""
        for ids in loader:
            (self.module(ids) * (1.0 + ids[:, None])).sum().backward()
            with torch.no_grad():
                self.dense.weight += 0.25
        return {"tables": loader.state_dict(), "dense": self.dense.state_dict()}

    def first(self) -> State:
        """Train until the checkpoint; return it."""
        with self.loader(range(SAVED_AT)) as loader:
            return self.train(loader)

    def resumed(self, saved: Mapping[str, Any]) -> tuple[State, State]:
        """Return the state once a checkpoint is loaded, and after all steps of a training that goes on with it."""
        with self.loader(range(SAVED_AT, STEPS)) as loader:
            loader.load_state_dict(saved["tables"])
            self.dense.load_state_dict(saved["dense"])
            loaded = {"tables": loader.state_dict(), "dense": saved["dense"]}
            return loaded, self.train(loader)

    def restored(self) -> State:
        """Return the latter, of a training that goes on with its journal."""
        with self.loader(range(SAVED_AT, STEPS)) as loader:
            assert loader.restore() == SAVED_AT
            return self.train(loader)


def _ids(batch: torch.Tensor) -> torch.Tensor:
    return batch
