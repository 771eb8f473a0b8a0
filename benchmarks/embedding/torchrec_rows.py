"""TorchRec's row-wise sharded table, a peer of lab.py: ids -> vectors, as our modules.

The tables are folded into one. Its owners update rows by FBGEMM's fused row-wise Adagrad, within the backward pass.
TorchRec shards by blocks of rows, and the popular rows of Criteo's tables lie in few of them: ids are permuted so that
each rank owns every n-th row, as in RowSharded.

Distinct ids are found before TorchRec gets them, as by our methods, so that each row and gradient travels once.
TorchRec would send a row as often as the batch uses it: its own deduplication is for GPUs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch.nn import functional
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.shard import shard
from torchrec.distributed.sharding_plan import row_wise
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from hvd_compress.embedding.kernels import UniqueRows

CPU = torch.device("cpu")


class TorchRecRows(torch.nn.Module):
    """Called with ids (batch, tables), int64, returns vectors (batch, tables, dim)."""

    def __init__(self, tables: tuple[int, ...], dim: int, learning_rate: float) -> None:
        super().__init__()
        self._offsets, self._world_size = torch.tensor([0, *tables[:-1]]).cumsum(0), dist.get_world_size()
        self._rows_per_rank = -(-sum(tables) // self._world_size)
        config = torchrec.EmbeddingConfig(
            name="rows",
            num_embeddings=self._world_size * self._rows_per_rank,
            embedding_dim=dim,
            feature_names=["ids"],
        )
        fused = {"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD, "learning_rate": learning_rate, "eps": 1e-8}
        self.sharded = shard(
            torchrec.EmbeddingCollection(tables=[config], device=torch.device("meta")),
            {"rows": row_wise(compute_kernel="fused")},
            device=CPU,
            sharder=EmbeddingCollectionSharder(fused_params=fused),
        )

    def distinct(self, ids: torch.Tensor) -> tuple[KeyedJaggedTensor, torch.Tensor]:
        """Return the distinct rows of a batch's ids, and each id's position among them."""
        rows, positions = UniqueRows().collect((ids + self._offsets).flatten())
        rows = rows % self._world_size * self._rows_per_rank + rows // self._world_size
        lengths = torch.tensor([rows.numel()], dtype=torch.int32)
        return KeyedJaggedTensor(["ids"], rows, lengths=lengths), positions.view(ids.shape)

    def vectors(self, rows: KeyedJaggedTensor, positions: torch.Tensor) -> torch.Tensor:
        return functional.embedding(positions, self.sharded(rows)["ids"].values())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.vectors(*self.distinct(ids))


@dataclass
class Prepared(Pipelineable):
    """A batch whose distinct rows are found. It is on the CPU, and stays there."""

    labels: torch.Tensor
    dense: torch.Tensor
    rows: KeyedJaggedTensor
    positions: torch.Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> Prepared:
        return self

    def record_stream(self, stream: torch.Stream) -> None:
        pass


class _Loss(torch.nn.Module):
    """The model that a pipeline traces: it finds the sharded table in it, whose ids it sends ahead."""

    def __init__(self, rows: TorchRecRows, model: torch.nn.Module) -> None:
        super().__init__()
        self.rows, self.model = rows, model

    def forward(self, batch: Prepared) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.model(batch.dense, self.rows.vectors(batch.rows, batch.positions))
        return functional.binary_cross_entropy_with_logits(logits, batch.labels), logits


def pipelined(
    rows: TorchRecRows, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable
) -> Callable[[], object]:
    """Return a step of TrainPipelineSparseDist, in which the ids of the next batch travel to their owners."""
    pipeline = TrainPipelineSparseDist(_Loss(rows, model), optimizer, CPU)
    prepared = (Prepared(batch.labels, batch.dense, *rows.distinct(batch.ids)) for batch in batches)
    return lambda: pipeline.progress(prepared)
