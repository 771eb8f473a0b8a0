"""One rank of paired.py: collectives by our engine and by gloo's own, in windows, in turns. Rank 0 tells the times."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.frame.lab import asked, tell
from benchmarks.frame.ranks import over_gloo
from benchmarks.frame.turns import Step, in_turns
from hvd_compress.engines.base import Engine
from hvd_compress.engines.torch_distributed import TorchEngine

MOST_BYTES = 1 << 22
"""That a window moves, but for a single collective."""


def pairs(engine: Engine, nbytes: int) -> dict[str, tuple[Step, Step]]:
    """Return by verb what moves a tensor of this number of bytes over an engine, and by gloo's own collective."""
    size = engine.world_size
    tensor = torch.ones(nbytes // 4)
    parts, received, whole = list(tensor.split(len(tensor) // size)), torch.empty_like(tensor), tensor.repeat(size)
    lengths, equal = [len(parts[0])] * size, [len(tensor)] * size
    return {
        "allreduce": (lambda: engine.allreduce(tensor), lambda: dist.all_reduce(tensor)),
        "alltoall": (lambda: engine.alltoall(parts, lengths), lambda: dist.all_to_all_single(received, tensor)),
        "allgather": (
            lambda: engine.allgather(tensor, equal, out=whole),
            lambda: dist.all_gather_into_tensor(whole, tensor),
        ),
        "broadcast": (lambda: engine.broadcast(tensor, 0), lambda: dist.broadcast(tensor, 0)),
    }


def main() -> None:
    wanted, found = asked(), []
    with over_gloo():
        engine = TorchEngine()
        for nbytes in wanted["sizes"]:
            for verb, both in pairs(engine, nbytes).items():
                found.append([verb, nbytes, in_turns(both, wanted["rounds"], max(1, min(20, MOST_BYTES // nbytes)))])
        tell(wanted, {"found": found})


if __name__ == "__main__":
    main()
