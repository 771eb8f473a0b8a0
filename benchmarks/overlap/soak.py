r"""Train long with several buckets in flight, until the end or a misfortune of the last rank.

    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python benchmarks/overlap/soak.py none 10000
    mpirun -np 3 --map-by :OVERSUBSCRIBE --bind-to none python benchmarks/overlap/soak.py "is killed" 5000

STEP is that of the misfortune, or how many there are. MISFORTUNE is none, "is killed", "is stopped" or nan: gradients
that are not finite in every 1000th step. Eight buckets by int4, four in flight, replicas compared in every 100th step.
Prints a line a thousand steps.
"""

from __future__ import annotations

import os
import resource
import signal
import threading

os.environ.setdefault("HVD_COMPRESS_IN_FLIGHT", "4")
os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "20000")
os.environ.setdefault("HVD_COMPRESS_ADAPT", "0")
os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "20")

import click
import torch

import hvd_compress.torch as hvd

LAYERS, WIDTH, STEPS = 8, 64, 10_000
MISFORTUNES = "none", "is killed", "is stopped", "nan"


@click.command(help=__doc__)
@click.argument("misfortune", type=click.Choice(MISFORTUNES))
@click.argument("step", type=int)
def main(misfortune: str, step: int) -> None:
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters(), hvd.Compression.int4()
    )
    unlucky = hvd.rank() == hvd.size() - 1
    for number in range(STEPS if misfortune.startswith("is") else step):
        if unlucky and number == step and misfortune.startswith("is"):
            os.kill(os.getpid(), signal.SIGKILL if misfortune == "is killed" else signal.SIGSTOP)
        optimizer.zero_grad()
        loss = model(torch.randn(4, WIDTH)).square().mean()
        if unlucky and misfortune == "nan" and number % 1000 == 999:
            loss = loss * torch.nan
        loss.backward()
        if misfortune == "nan":
            optimizer.synchronize()
            if optimizer.last_step.finite:
                with optimizer.skip_synchronize():
                    optimizer.step()
        else:
            optimizer.step()
        if hvd.rank() == 0 and number % 1000 == 999:
            print(f"{number + 1} steps, {len(optimizer.decisions)} buckets, {_used()}", flush=True)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    gathered = hvd.allgather(weights.unsqueeze(0), name="weights")
    assert bool((gathered == weights).all()), "replicas differ"
    if hvd.rank() == 0:
        print(
            f"the end: replicas are equal, {optimizer.last_step.nonfinite_steps} steps not finite, {_used()}",
            flush=True,
        )


def _used() -> str:
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (
        f"{kilobytes >> 10} MiB at most, {threading.active_count()} threads, {len(os.listdir('/proc/self/fd'))} files"
    )


if __name__ == "__main__":
    main()
