"""Sparse gradients (embeddings): all-gather of the rows that each rank touched."""

from __future__ import annotations

import torch

from hvd_compress.devices.lane import HOST, Lane
from hvd_compress.engines.base import Engine
from hvd_compress.errors import PayloadError, UnsupportedError
from hvd_compress.schemes.base import Exchange, all_finite


class SparseRows(Exchange):
    """One parameter with sparse gradients, exact and without compression: they are sparse already.

    Two all-gathers of unequal lengths: int64 indices and values. `result` is the sparse sum over ranks times `scale`.
    On a GPU the host waits for it, as torch does wherever it counts the rows of a sparse tensor.
    """

    def __init__(self, parameter: torch.Tensor, scale: float, lane: Lane = HOST) -> None:
        self._parameter, self._scale, self._lane = parameter, scale, lane
        self.result: torch.Tensor
        self._sparse_dim = 1

    def encode(self) -> None:
        gradient = self._parameter.grad
        if gradient is None:
            gradient = torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64),
                torch.empty((0, *self._parameter.shape[1:]), dtype=self._parameter.dtype),
                self._parameter.shape,
                device=self._parameter.device,
                check_invariants=True,
            )
        if not gradient.is_sparse:  # sparse on another rank, or in another step
            gradient = gradient.to_sparse(self._sparse_dim)
        gradient = gradient.coalesce()
        if gradient.sparse_dim() != self._sparse_dim:
            raise UnsupportedError(f"{gradient.sparse_dim()} sparse dimensions instead of 1: use sparse_as_dense=True")
        self._indices = self._lane.post("indices", gradient.indices().reshape(-1).contiguous())
        self._values = self._lane.post("values", gradient.values().reshape(-1).contiguous())

    def communicate(self, engine: Engine) -> None:
        self._all_indices = engine.allgather(self._indices)
        self._all_values = engine.allgather(self._values)

    def decode(self) -> torch.Tensor:
        rows, width = self._parameter.shape[0], self._parameter.shape[1:]
        for rank, (indices, values) in enumerate(zip(self._all_indices, self._all_values, strict=True)):
            if values.numel() != indices.numel() * width.numel():
                raise PayloadError(f"rank {rank} sent {values.numel()} values for {indices.numel()} rows of {width}")
            if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < rows:
                raise PayloadError(f"rank {rank} sent a row outside 0..{rows - 1}")
        indices = self._lane.fetch(torch.cat(self._all_indices)).reshape(1, -1)
        values = self._lane.fetch(torch.cat(self._all_values)).reshape(-1, *width) * self._scale
        self.result = torch.sparse_coo_tensor(indices, values, self._parameter.shape, check_invariants=True).coalesce()
        return all_finite(self.result.values())
