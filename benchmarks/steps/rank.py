"""One process of benchmarks/steps/paired.py: all ranks as threads, or one of a job under mpirun."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import torch

SHARES = (0.5, 0.3, 0.15, 0.04, 0.01)
"""Parameters of a model, as shares of its elements."""


def parameters(numel: int, parts: int) -> dict[str, torch.nn.Parameter]:
    """Return `parts` equal parameters; with 0 those of SHARES."""
    shares = [1 / parts] * parts if parts else SHARES
    return {f"p{n}": torch.nn.Parameter(torch.zeros(int(share * numel) // 64, 64)) for n, share in enumerate(shares)}


def gradients(numel: int, parts: int, rank: int) -> list[list[torch.Tensor]]:
    """Four steps of gradients, which take turns: to draw them anew would take longer than to exchange them."""
    generator = torch.Generator().manual_seed(rank)
    return [[torch.randn(p.shape, generator=generator) for p in parameters(numel, parts).values()] for _ in range(4)]


def window(own: dict[str, torch.nn.Parameter], optimizer, drawn: list[list[torch.Tensor]], steps: int) -> float:
    start = time.perf_counter()
    for step in range(steps):
        sum((p * g).sum() for p, g in zip(own.values(), drawn[step % len(drawn)], strict=True)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - start) / steps


def in_process(compression: str, ranks: int, numel: int, parts: int, folder: Path) -> None:
    from threading import Barrier

    from hvd_compress.compressors import BlockQuantizer, Cast, EFSign, TopK
    from hvd_compress.decision import Request
    from hvd_compress.engines.inprocess import run_ranks
    from hvd_compress.named_parameters import name_parameters, trainable
    from hvd_compress.optimizer import wrap
    from hvd_compress.reducer import ReduceOptions, Reducer
    from hvd_compress.settings import Settings

    requests = {"topk": Request(TopK(0.01), "star"), "efsign": Request(EFSign()), "dense": Request(Cast())}
    requests["int4"] = Request(BlockQuantizer(4))
    together, asked, taken = Barrier(ranks), [0], [0.0] * ranks

    def body(engine) -> None:
        own, drawn = parameters(numel, parts), gradients(numel, parts, engine.rank)
        sgd = torch.optim.SGD(list(own.values()), lr=0.01)
        names = name_parameters(sgd, own.items())
        named = {name: parameter for parameter, name in trainable(names).items()}
        settings = Settings(numel, 60.0)
        reducer = Reducer(named, requests[compression], lambda: engine, ReduceOptions(), settings)
        optimizer = wrap(sgd, names, reducer, 1, engine.rank, ranks)
        while True:
            if engine.rank == 0:
                asked[0] = int((folder / "go-0").read_text())
            together.wait()
            if not asked[0]:
                return
            taken[engine.rank] = window(own, optimizer, drawn, asked[0])
            together.wait()
            if engine.rank == 0:
                (folder / "done").write_text(str(max(taken)))

    run_ranks(ranks, body, timeout_s=600.0)


def under_mpirun(compression: str, numel: int, parts: int, folder: Path) -> None:
    import hvd_compress.torch as hvd

    hvd.init()
    made = {"topk": lambda: hvd.Compression.topk(0.01, "star", "ring"), "efsign": hvd.Compression.efsign}
    made["int4"] = hvd.Compression.int4
    request = made.get(compression, hvd.Compression.dense)()
    own, drawn = parameters(numel, parts), gradients(numel, parts, hvd.rank())
    sgd = torch.optim.SGD(list(own.values()), lr=0.01)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=own.items(), compression=request)
    while steps := int((folder / f"go-{hvd.rank()}").read_text()):
        seconds = window(own, optimizer, drawn, steps)
        slowest = hvd.allreduce(torch.tensor([seconds]), op=hvd.Max, name="slowest")
        if hvd.rank() == 0:
            (folder / "done").write_text(str(float(slowest)))
    if hvd.rank() == 0:
        ways = Counter(f"{way.scheme} ({way.reason})" for way in optimizer.decisions.values())
        (folder / "paths").write_text("; ".join(f"{count} by {way}" for way, count in ways.items()))


if __name__ == "__main__":
    kind, compression_, ranks_, numel_, parts_, folder_ = sys.argv[1:]
    torch.set_num_threads(1)
    if kind == "in-process":
        in_process(compression_, int(ranks_), int(numel_), int(parts_), Path(folder_))
    else:
        under_mpirun(compression_, int(numel_), int(parts_), Path(folder_))
