"""One process of paired.py: all ranks as threads, or one of a job under mpirun.

It runs with hvd_compress of another checkout, perhaps an old one: of the frame it imports what needs none of it.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

import hvd_compress
from benchmarks.frame.ranks import over_gloo, rank, slowest

SHARES = (0.5, 0.3, 0.15, 0.04, 0.01)
"""Parameters of a model, as shares of its elements."""

BEFORE = 2
"""Steps of a window that do not count: ranks wake one after the other, and the other job has taken the caches."""

Loss = Callable[[list[torch.Tensor]], torch.Tensor]
"""Takes the gradients that its backward pass is to leave."""


def parameters(numel: int, parts: int) -> dict[str, torch.nn.Parameter]:
    """Return `parts` equal parameters; with 0 those of SHARES."""
    shares = [1 / parts] * parts if parts else SHARES
    return {f"p{n}": torch.nn.Parameter(torch.zeros(int(share * numel) // 64, 64)) for n, share in enumerate(shares)}


def gradients(numel: int, parts: int, seed: int) -> list[list[torch.Tensor]]:
    """Four steps of gradients, which take turns: to draw them anew would take longer than to exchange them."""
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(p.shape, generator=generator) for p in parameters(numel, parts).values()] for _ in range(4)]


def loss_of(own: Iterable[torch.nn.Parameter], drawn: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([(p * g).sum() for p, g in zip(own, drawn, strict=True)]).sum()


def window(loss: Loss, optimizer, drawn: list[list[torch.Tensor]], steps: int) -> float:
    for step in range(BEFORE + steps):
        if step == BEFORE:
            start = time.perf_counter()
        loss(drawn[step % len(drawn)]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - start) / steps


def in_process(compression: str, ranks: int, numel: int, parts: int, folder: Path) -> None:
    from threading import Barrier

    from hvd_compress.compressors import BlockQuantizer, Cast, EFSign, TopK
    from hvd_compress.engines.inprocess import run_ranks
    from hvd_compress.frontends.optimizer.optimizer import wrap
    from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
    from hvd_compress.request.request import Request
    from hvd_compress.settings import Settings

    try:
        from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
    except ModuleNotFoundError:  # where they were once
        from hvd_compress.frontends.optimizer.optimizer import name_parameters, trainable

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
            taken[engine.rank] = window(lambda each: loss_of(own.values(), each), optimizer, drawn, asked[0])
            together.wait()
            if engine.rank == 0:
                (folder / "done").write_text(str(max(taken)))

    run_ranks(ranks, body, timeout_s=600.0)


def under_mpirun(compression: str, numel: int, parts: int, folder: Path) -> None:
    import hvd_compress.torch as hvd

    hvd.init()
    own, drawn = parameters(numel, parts), gradients(numel, parts, hvd.rank())
    sgd = torch.optim.SGD(list(own.values()), lr=0.01)
    request = request_of(hvd.Compression, compression, "ring")
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=own.items(), compression=request)
    step_when_asked(lambda each: loss_of(own.values(), each), optimizer, drawn, folder)
    if hvd.rank() == 0:
        handle = hvd.of(optimizer) if hasattr(hvd, "of") else optimizer  # in earlier checkouts
        write_paths(handle.decisions.values(), folder)


def under_ddp(compression: str, numel: int, parts: int, folder: Path) -> None:
    from torch.nn.parallel import DistributedDataParallel

    import hvd_compress.ddp as hc

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.ParameterList(parameters(numel, parts).values())

        def forward(self, drawn: list[torch.Tensor]) -> torch.Tensor:
            return loss_of(self.own, drawn)

    with over_gloo(f"file://{folder}/store"):
        model = hc.compress(DistributedDataParallel(Model()), request_of(hc.Compression, compression))
        sgd = torch.optim.SGD(model.parameters(), lr=0.01)
        step_when_asked(model, sgd, gradients(numel, parts, rank()), folder)
        if rank() == 0:
            decisions = hc.of(model).decisions if hasattr(hc, "of") else hc.decisions(model)
            write_paths(decisions.values(), folder)


def request_of(namespace, compression: str, algorithm: str = "auto"):
    made = getattr(namespace, compression)
    if compression != "topk":
        return made()
    if not hasattr(made(), "by"):  # before there was one
        return made(0.01, "star", algorithm)
    return made(0.01).by(collective="star", algorithm=algorithm)


def step_when_asked(loss: Loss, optimizer, drawn: list[list[torch.Tensor]], folder: Path) -> None:
    while steps := int((folder / f"go-{rank()}").read_text()):
        seconds = slowest(window(loss, optimizer, drawn, steps))
        if rank() == 0:
            (folder / "done").write_text(str(seconds))


def write_paths(decisions, folder: Path) -> None:
    paths = Counter(f"{decision.collective} ({decision.reason})" for decision in decisions)
    (folder / "paths").write_text("; ".join(f"{count} by {path}" for path, count in paths.items()))


def main() -> None:
    kind, compression, ranks, numel, parts, folder = sys.argv[1:]
    used, wanted = Path(hvd_compress.__file__).parents[1], Path(os.environ["PYTHONPATH"])
    if used != wanted:
        sys.exit(f"hvd_compress of {used} is imported, not that of {wanted}")
    torch.set_num_threads(1)
    if kind == "in-process":
        in_process(compression, int(ranks), int(numel), int(parts), Path(folder))
    else:
        program = {"mpi": under_mpirun, "ddp": under_ddp}[kind]
        program(compression, int(numel), int(parts), Path(folder))


if __name__ == "__main__":
    main()
