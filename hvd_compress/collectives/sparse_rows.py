"""Sparse gradients (embeddings): all-gather of the rows that each rank touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.base import Collective, Exchange, Work
from hvd_compress.compressors.base import Compressor
from hvd_compress.compressors.finite import all_finite
from hvd_compress.cost.paths import Path, Stage
from hvd_compress.engines.base import Capabilities, Engine
from hvd_compress.errors import PayloadError, UnsupportedError

INDEX_BYTES = 8


@dataclass(frozen=True)
class SparseRows(Collective):
    """Two all-gathers of unequal lengths: int64 indices and values of one parameter, exact and without compression.

    The exchange's `result` is the sparse sum over ranks times the scale. On a GPU the host waits for it, as torch does
    wherever it counts the rows of a sparse tensor. Buckets with `layout.sparse` travel so, and no others.
    """

    compressor: Compressor
    path: Path = Path("sparse-rows")
    names = ("sparse-rows",)
    named = False

    @classmethod
    def carries(cls, compressor: Compressor) -> bool:
        return not compressor.compresses

    @classmethod
    def variants(cls, compressor: Compressor, layout: Layout, can: Capabilities) -> Sequence[Path]:
        return (Path("sparse-rows"),) if layout.sparse and cls.carries(compressor) else ()

    def stages(self, layout: Layout, world_size: int) -> tuple[Stage, ...]:
        """Return the most: all rows."""
        rows = layout.shapes[0][0]
        return (Stage("allgather", "auto", INDEX_BYTES * rows), Stage("allgather", "auto", layout.nbytes))

    def exchange(self, work: Work, rank: int, world_size: int) -> Exchange:
        return _SparseRowsExchange(work)


def no_rows(parameter: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a parameter of which no row was touched."""
    indices = torch.empty((1, 0), dtype=torch.int64, device=parameter.device)
    return torch.sparse_coo_tensor(
        indices, parameter.new_empty((0, *parameter.shape[1:])), parameter.shape, check_invariants=True
    )


class _SparseRowsExchange(Exchange):
    def __init__(self, work: Work) -> None:
        self._work, self._shape = work, torch.Size(work.layout.shapes[0])

    def encode(self) -> None:
        gradient, lane = self._work.gradient, self._work.lane
        if not gradient.is_sparse:  # sparse on another rank, or in another step
            gradient = gradient.to_sparse(1)
        gradient = gradient.coalesce()
        if gradient.sparse_dim() != 1:
            raise UnsupportedError(f"{gradient.sparse_dim()} sparse dimensions instead of 1: use sparse_as_dense=True")
        self._indices = lane.post("indices", gradient.indices().reshape(-1).contiguous())
        self._values = lane.post("values", gradient.values().reshape(-1).contiguous())

    def communicate(self, engine: Engine) -> None:
        self._all_indices = engine.allgather(self._indices)
        self._all_values = engine.allgather(self._values)

    def decode(self) -> torch.Tensor:
        lane, rows, width = self._work.lane, self._shape[0], self._shape[1:]
        for rank, (indices, values) in enumerate(zip(self._all_indices, self._all_values, strict=True)):
            if values.numel() != indices.numel() * width.numel():
                raise PayloadError(f"rank {rank} sent {values.numel()} values for {indices.numel()} rows of {width}")
            if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
                raise PayloadError(f"rank {rank} sent a row outside 0..{rows - 1}")
        indices = lane.fetch(torch.cat(self._all_indices)).reshape(1, -1)
        values = lane.fetch(torch.cat(self._all_values)).reshape(-1, *width) * self._work.scale
        self.result = torch.sparse_coo_tensor(indices, values, self._shape, check_invariants=True).coalesce()
        return all_finite(self.result.values())
