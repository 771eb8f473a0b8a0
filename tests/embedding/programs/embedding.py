"""Train an embedding and a layer on top, with checkpoints, and go on from the last one that all ranks have.

usage: embedding.py STEPS FOLDER [KILLED_RANK KILLED_STEP DELAY_S]

With the last three, that rank is killed so long after it has begun that step. In the end each rank prints a digest of
its rows, and of the layer.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from threading import Timer

import torch

import hvd_compress.torch as hvd
import tests.jobs.programs.quick_start  # noqa: F401
from hvd_compress.embedding import Adagrad, CachedEmbedding, Lookahead

ROWS, EVERY = 200, 4


def ids_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + hvd.rank())
    return (torch.rand(40, generator=generator) ** 3 * ROWS).long()


def digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()[:16]


def saved(folder: Path, step: int) -> Path:
    return folder / f"rank{hvd.rank()}.step{step}"


def last_of_all(folder: Path) -> int:
    """Return the last step that all ranks have saved; 0 for none."""
    mine = [int(path.suffix.removeprefix(".step")) for path in folder.glob(f"rank{hvd.rank()}.step*")]
    return max(set.intersection(*map(set, hvd.allgather_object([0, *mine]))))


def main() -> None:
    steps, folder = int(sys.argv[1]), Path(sys.argv[2])
    rank, killed_step, delay_s = (float(each) for each in sys.argv[3:6]) if len(sys.argv) > 3 else (-1.0, -1.0, 0.0)
    hvd.init()
    torch.manual_seed(1)
    embedding, top = CachedEmbedding(ROWS, 4, optimizer=Adagrad(0.1)), torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(top.parameters(), 0.01),
        named_parameters=top.named_parameters(),
        compression=hvd.Compression.int8(),
    )
    first = last_of_all(folder)
    loader = Lookahead(map(ids_of, range(first, steps)), {lambda ids: ids: embedding}, cache_rows=150, lookahead=6)
    if first:
        state = torch.load(saved(folder, first))
        top.load_state_dict(state["top"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["tables"])
    if hvd.rank() == 0:
        print(f"begins with step {first}", flush=True)
    for step, ids in enumerate(loader, start=first):
        if hvd.rank() == rank and step == killed_step:
            Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        optimizer.zero_grad()
        (top(embedding(ids)).squeeze(1) - (ids % 5).float()).square().mean().backward()
        optimizer.step()
        if (step + 1) % EVERY == 0:
            state = {"top": top.state_dict(), "optimizer": optimizer.state_dict(), "tables": loader.state_dict()}
            partial = folder / f"rank{hvd.rank()}.partial"
            torch.save(state, partial)
            partial.replace(saved(folder, step + 1))
    state = loader.state_dict()["embedding"]
    print(
        f"[rank {hvd.rank()}] {digest([state['rows'], state['values'], state['states'], *top.parameters()])}",
        flush=True,
    )
    loader.close()


if __name__ == "__main__":
    main()
