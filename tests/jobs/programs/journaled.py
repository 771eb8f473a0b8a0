"""Train an embedding and a layer on top with a journal, and go on behind the last step that it has.

usage: journaled.py STEPS FOLDER SERVERS [KILLED_RANK KILLED_STEP DELAY_S]

With the last three, that rank is killed so long after it has come to that step. In the end each rank prints a digest of
its rows, and of the layer where it has one.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd
from hvd_compress.embedding import Adagrad, CachedEmbedding, Journal, Lookahead, Servers, serve

ROWS, EVERY = 200, 7


def ids_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    return (torch.rand(40, generator=generator) ** 3 * ROWS).long()


def kill(embedding: CachedEmbedding, step: int, delay_s: float) -> None:
    while embedding.steps < step:
        time.sleep(0.0005)
    time.sleep(delay_s)
    os.kill(os.getpid(), signal.SIGKILL)


def told(embedding: CachedEmbedding, *more: torch.Tensor) -> None:
    assert embedding.shard is not None
    rows = embedding.shard.used.nonzero().flatten()
    tensors = [rows, embedding.shard.records.index_select(0, rows), *more]
    digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()[:16]
    print(f"[rank {hvd.rank()}] {digest}", flush=True)


def main() -> None:
    steps, folder, count = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    world = int(os.environ["OMPI_COMM_WORLD_SIZE"])
    training = hvd.ProcessSet(range(world - count))
    hvd.init(process_sets=[training] if count else [])
    torch.manual_seed(1)
    embedding, top = CachedEmbedding(ROWS, 4, optimizer=Adagrad(0.1)), torch.nn.Linear(4, 1)
    servers = Servers(count) if count else None
    if len(sys.argv) > 4 and hvd.rank() == int(sys.argv[4]):
        Thread(target=kill, args=(embedding, int(sys.argv[5]), float(sys.argv[6])), daemon=True).start()
    if servers is not None and servers.here:
        serve(servers, [embedding], Journal(folder, every=EVERY))
        told(embedding)
        return
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(top.parameters(), 0.01),
        named_parameters=top.named_parameters(),
        compression=hvd.Compression.int8(),
        process_set=training if count else hvd.global_process_set,
    )
    batches: list[torch.Tensor] = []
    loader = Lookahead(
        batches,
        {lambda ids: ids: embedding},
        cache_rows=150,
        lookahead=6,
        servers=servers,
        journal=Journal(folder, {"top": top, "optimizer": optimizer}, every=EVERY),
    )
    first = loader.restore()
    batches += map(ids_of, range(first, steps))
    if hvd.rank() == 0:
        print(f"begins with step {first}", flush=True)
    for ids in loader:
        optimizer.zero_grad()
        (top(embedding(ids)).squeeze(1) - (ids % 5).float()).square().mean().backward()
        optimizer.step()
    loader.close()
    told(embedding, *top.parameters())


if __name__ == "__main__":
    main()
