"""Train an embedding and a layer on top with a journal, and go on behind the last step that it has.

usage: journaled.py FRONT STEPS FOLDER SERVERS [KILLED_RANK KILLED_STEP DELAY_S]

FRONT is horovod or ddp. With the last three, that rank is killed so long after it has come to that step. In the end
each rank prints a digest of its rows, and of the layer where it has one.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from hvd_compress.embedding import Adagrad, CachedEmbedding, Journal, Lookahead, Servers, serve

ROWS, EVERY = 200, 7


class Horovod:
    """A job of mpirun's: which rank this is, and its dense part."""

    def __init__(self, servers: int) -> None:
        import hvd_compress.torch as hvd
        import tests.jobs.programs.quick_start  # noqa: F401

        self.hvd, world = hvd, int(os.environ["OMPI_COMM_WORLD_SIZE"])
        self.training = hvd.ProcessSet(range(world - servers)) if servers else hvd.global_process_set
        hvd.init(process_sets=[self.training] if servers else [])
        self.rank = hvd.rank()

    def wrap(self, top: torch.nn.Linear, optimizer: torch.optim.Optimizer, _: Servers | None) -> Any:
        """Return the model to call, its optimizer, and what else a journal must have."""
        distributed = self.hvd.DistributedOptimizer(
            optimizer,
            named_parameters=top.named_parameters(),
            compression=self.hvd.Compression.int8(),
            process_set=self.training,
        )
        return top, distributed, {}


class Ddp:
    """The same of torchrun's."""

    def __init__(self, servers: int) -> None:
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.group = dist.new_group(list(range(dist.get_world_size() - servers)))

    def wrap(self, top: torch.nn.Linear, optimizer: torch.optim.Optimizer, servers: Servers | None) -> Any:
        import hvd_compress.ddp as hc

        model = torch.nn.parallel.DistributedDataParallel(top, process_group=self.group)
        hc.compress(model, hc.Compression.int8())
        return model, optimizer, {"residuals": Residuals(model, hc)}


class Residuals:
    """What a journal writes of a compressed DDP model."""

    def __init__(self, model: torch.nn.Module, hc: Any) -> None:
        self.model, self.hc = model, hc

    def state_dict(self) -> Any:
        return self.hc.state_dict(self.model)

    def load_state_dict(self, state: Any) -> None:
        self.hc.load_state_dict(self.model, state)


FRONTS: dict[str, Callable[[int], Any]] = {"horovod": Horovod, "ddp": Ddp}


def ids_of(rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (torch.rand(40, generator=generator) ** 3 * ROWS).long()


def kill(embedding: CachedEmbedding, step: int, delay_s: float) -> None:
    while embedding.steps < step:
        time.sleep(0.0005)
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


def told(rank: int, embedding: CachedEmbedding, *more: torch.Tensor) -> None:
    rows = embedding.own_shard.used.nonzero().flatten()
    tensors = [rows, embedding.own_shard.records.index_select(0, rows), *more]
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()[:16]
    print(f"[rank {rank}] {digest}", flush=True)


def main() -> None:
    steps, folder, count = int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    front = FRONTS[sys.argv[1]](count)
    torch.manual_seed(1)
    embedding, top = CachedEmbedding(ROWS, 4, optimizer=Adagrad(0.1)), torch.nn.Linear(4, 1)
    servers = Servers(count) if count else None
    if len(sys.argv) > 5 and front.rank == int(sys.argv[5]):
        Thread(target=kill, args=(embedding, int(sys.argv[6]), float(sys.argv[7])), daemon=True).start()
    if servers is not None and servers.here:
        serve(servers, [embedding], Journal(folder, every=EVERY))
        told(front.rank, embedding)
        return
    model, optimizer, more = front.wrap(top, torch.optim.Adam(top.parameters(), 0.01), servers)
    batches: list[torch.Tensor] = []
    loader = Lookahead(
        batches,
        {lambda ids: ids: embedding},
        cache_rows=150,
        lookahead=6,
        servers=servers,
        journal=Journal(folder, {"top": top, "optimizer": optimizer, **more}, every=EVERY),
    )
    first = loader.restore()
    batches += [ids_of(front.rank, step) for step in range(first, steps)]
    if front.rank == 0:
        print(f"begins with step {first}", flush=True)
    for ids in loader:
        optimizer.zero_grad()
        (model(embedding(ids)).squeeze(1) - (ids % 5).float()).square().mean().backward()
        optimizer.step()
    loader.close()
    if servers is not None:
        servers.close()
    told(front.rank, embedding, *top.parameters())


if __name__ == "__main__":
    main()
