"""Which samples a rank takes, where ranks come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.frontends.horovod.runtime_selection import hvd


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Gives each rank its part of the samples that no rank has seen in this epoch, also where ranks come and go.

    Attributes:
        epoch: the current one.
        processed_indices: samples that are done with in it, of all ranks.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        """Begin with epoch 0.

        Args:
            dataset: only its length is asked for.
            seed: of the order of samples; the same on all ranks.
        """
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_indices: set[int] = set()
        self.indices: list[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, of which no sample was seen. Call it at the end of the last: a beginning may come twice."""
        self.epoch, self.processed_indices = epoch, set()
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """This rank is done with a batch of those that it was given since ranks have met."""
        self.record_indices(self.indices[batch_idx * batch_size :][:batch_size])

    def record_indices(self, indices: Sequence[int]) -> None:
        """This rank is done with these samples."""
        self.processed_indices.update(indices)

    def reset(self) -> None:
        """Share what is left among the ranks that have met."""
        left = [index for index in range(len(self.dataset)) if index not in self.processed_indices]
        if self.shuffle:
            draw = torch.Generator().manual_seed(self.seed + self.epoch)
            left = [left[place] for place in torch.randperm(len(left), generator=draw).tolist()]
        ranks, rank = _place()
        size = -(-len(left) // ranks) * ranks  # all ranks take as many steps: some samples fill up what is missing
        self.indices = (left * ranks)[:size][rank::ranks]

    def state_dict(self) -> dict[str, Any]:
        """Return what merge() and load_state_dict() take."""
        return {"epoch": self.epoch, "processed_indices": sorted(self.processed_indices)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what state_dict() has returned."""
        self.epoch, self.processed_indices = state["epoch"], set(state["processed_indices"])
        self.reset()

    def merge(self, states: Sequence[dict[str, Any]], root: int) -> None:
        """Go on in the epoch of rank `root`, with what all ranks that are in it have seen."""
        epoch = states[root]["epoch"]
        seen = {index for each in states if each["epoch"] == epoch for index in each["processed_indices"]}
        self.load_state_dict({"epoch": epoch, "processed_indices": seen})

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def _place() -> tuple[int, int]:
    """Return how many ranks there are, and which this is."""
    if hvd.is_initialized():
        return hvd.size(), hvd.rank()
    if dist.is_available() and dist.is_initialized():  # in a program for DistributedDataParallel, before run()
        return dist.get_world_size(), dist.get_rank()
    return 1, 0
