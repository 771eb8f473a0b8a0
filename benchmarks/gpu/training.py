"""Train with gradients on a GPU that several ranks share, and compare reduced gradients with the CPU's, bit by bit.

Ranks are processes of this machine. They talk over torch.distributed's Gloo, and over MPI where mpirun and mpi4py are.
Needs torch and the built package; it fetches nothing. `--device cpu` plays the whole of it without a GPU.

python -m benchmarks.gpu.training [--device cuda] [--ranks 2] [--json FILE]
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.frame.store import ROOT
from benchmarks.gpu.page import training as table
from hvd_compress import of
from hvd_compress.compressors import Cast, EFSign, TopK
from hvd_compress.engines.base import Engine
from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer, wrap
from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings

REQUESTS = {
    "topk, all-gather": Request(TopK(0.01), "allgather"),
    "topk, STAR": Request(TopK(0.01), "star"),
    "topk, VAR": Request(TopK(0.01), "var"),
    "layerwise topk, STAR": Request(TopK(0.01, layerwise=True), "star"),
    "EF-sign": Request(EFSign()),
    "bf16": Request(Cast(torch.bfloat16)),
    "dense": Request(Cast()),
    "topk, STAR, on the CPU": Request(TopK(0.01), "star", device="cpu"),
}
DTYPES = (torch.float32, torch.bfloat16)
STEPS = 4


@click.command(help=__doc__)
@click.option("--device", default="cuda", show_default=True, help="Where gradients are: cuda, cuda:N or cpu.")
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--numel", default=1_000_003, show_default=True, help="Elements that are compared.")
@click.option("--width", default=2048, show_default=True, help="Of the 6 square layers whose steps are timed.")
@click.option("--repetitions", default=20, show_default=True, type=click.IntRange(min=1), help="Of what is timed.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all figures to this file.")
@click.option("--transport", type=click.Choice(["gloo", "mpi"]), help="One of them only.")
@click.option("--limit-s", default=500.0, show_default=True, help="Seconds that ranks may take over a transport.")
@click.option("--folder", hidden=True, type=click.Path(path_type=Path), help="This process is a rank.")
@click.option("--rank", hidden=True, type=int)
def main(folder: Path | None, rank: int | None, json_file: Path | None, limit_s: float, **options: Any) -> None:
    if folder is not None:
        be_rank(folder, rank, **options)
        return
    if options["device"].startswith("cuda") and not torch.cuda.is_available():
        raise click.ClickException("torch sees no GPU here; --device cpu plays this without one")
    chosen = options.pop("transport")
    transports = [chosen] if chosen else available_transports()
    report = {transport: run(transport, limit_s, **options) for transport in transports}
    click.echo(page(report))
    if json_file is not None:
        json_file.write_text(json.dumps(report, indent=1) + "\n")
    different = [text for found in report.values() for text in found["different"]]
    if different:
        raise click.ClickException("; ".join(different))


def available_transports() -> list[str]:
    """MPI only where it can be launched."""
    mpi = shutil.which("mpirun") is not None and importlib.util.find_spec("mpi4py") is not None
    return ["gloo", "mpi"] if mpi else ["gloo"]


def run(transport: str, limit_s: float, **options: Any) -> dict[str, Any]:
    """Run all ranks over a transport and return what rank 0 found. Raises ClickException where any rank failed."""
    with tempfile.TemporaryDirectory(prefix="hvd_compress-training-") as folder:
        call = [sys.executable, "-m", "benchmarks.gpu.training", f"--folder={folder}", f"--transport={transport}"]
        call += [f"--{name}={value}" for name, value in options.items() if value is not None]
        ranks = options["ranks"]
        if transport == "mpi":
            commands = [["mpirun", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "-np", str(ranks), *call]]
        else:
            commands = [[*call, f"--rank={rank}"] for rank in range(ranks)]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # as in a container
        environment = os.environ | root
        started = [subprocess.Popen(command, cwd=ROOT, start_new_session=True, env=environment) for command in commands]
        _wait_for(started, transport, limit_s)
        found: dict[str, Any] = json.loads((Path(folder) / "report.json").read_text())
        return found


def _wait_for(processes: list[subprocess.Popen[bytes]], transport: str, limit_s: float) -> None:
    """One that fails takes the others with it: they would wait for it."""
    deadline = time.monotonic() + limit_s
    try:
        while any(process.poll() is None for process in processes):
            failed = [process.returncode for process in processes if process.poll()]
            if failed or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise click.ClickException(f"ranks over {transport} ended with status {codes} (limit {limit_s:g} s)")


def be_rank(
    folder: Path, rank: int | None, transport: str, device: str, ranks: int, numel: int, width: int, repetitions: int
) -> None:
    """What each process does."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    engine = _connect(transport, folder, rank, ranks)
    place = torch.device(device)
    requests = {name: request for name, request in REQUESTS.items() if place.type != "cpu" or request.device == "auto"}
    compared = [compare(engine, place, name, request, numel) for name, request in requests.items()]
    different = engine.allgather_json([text for _, texts in compared for text in texts])
    figures = [measure(engine, place, name, request, width, repetitions) for name, request in requests.items()]
    if engine.rank == 0:
        card = torch.cuda.get_device_name(place) if place.type == "cuda" else "CPU"
        facts = {
            "device": card,
            "torch": torch.__version__,
            "ranks": ranks,
            "transport": transport,
            "equal": sum(equal for equal, _ in compared),
            "different": [text for texts in different for text in texts],
            "figures": figures,
        }
        (folder / "report.json").write_text(json.dumps(facts))
    engine.allgather(torch.zeros(1))  # nobody leaves before all have finished
    if transport == "gloo":
        # Threads of Gloo may still be freeing tensors, which ends in an abort once Python is going down.
        sys.stdout.flush()
        os._exit(0)


def _connect(transport: str, folder: Path, rank: int | None, ranks: int) -> Engine:
    if transport == "mpi":
        from hvd_compress.engines.mpi_environment import prepare

        prepare()
        from hvd_compress.engines.mpi import MpiEngine

        return MpiEngine()
    from hvd_compress.engines.torch_distributed import TorchEngine

    assert rank is not None
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    return TorchEngine()


def compare(engine: Engine, device: torch.device, name: str, request: Request, numel: int) -> tuple[int, list[str]]:
    """Reduce the same gradients on the CPU and on the device.

    Returns:
        how many results were equal; and those that were not, in words: the first of each dtype, as later ones follow.
    """
    equal, different, on_cpu = 0, [], replace(request, device="auto")
    for dtype in DTYPES:
        expected = reduced(engine, torch.device("cpu"), on_cpu, dtype, numel)
        found = reduced(engine, device, request, dtype, numel)
        wrong = []
        for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            for what, a, b in zip(("gradient", "residual"), ours, theirs, strict=True):
                if torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
                    equal += 1
                    continue
                wrong.append(
                    f"rank {engine.rank}, {name}, {dtype}: the {what} of step {step} differs from the CPU's in "
                    f"{int((a != b).sum())} of {a.numel()} elements"
                )
        different += wrong[:1]
    return equal, different


def reduced(
    engine: Engine, device: torch.device, request: Request, dtype: torch.dtype, numel: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return gradients and residuals of each step, on the CPU. What is reduced is given, the same on all devices."""
    shapes = [(numel // 3,), (7, numel // 21), (1,), (numel - numel // 3 - 7 * (numel // 21) - 1,)]
    parameters = [nn.Parameter(torch.zeros(shape, dtype=dtype, device=device)) for shape in shapes]
    optimizer = _optimizer(engine, parameters, request, bucket_bytes=2 * numel)
    history = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        for number, parameter in enumerate(parameters):
            generator = torch.Generator().manual_seed(1000 * engine.rank + 10 * step + number)
            given = torch.randn(parameter.shape, generator=generator).to(device, dtype)
            loss = loss + (parameter * given).sum()
        loss.backward()
        optimizer.synchronize()
        gradients = torch.cat([parameter.grad.reshape(-1).cpu() for parameter in parameters])
        (own,) = optimizer.state_dict()["hvd_compress"]["ranks"].values()
        history.append((gradients, torch.cat([torch.zeros(0), *own["residuals"].values()])))
    return history


def measure(
    engine: Engine, device: torch.device, name: str, request: Request, width: int, repetitions: int
) -> dict[str, Any]:
    """Return medians over steps: how long a backward pass takes, an exchange, and the two together.

    `hidden` is the share of the exchange that the backward pass hid: (backward + exchange - both) / exchange.
    """
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6))).to(device)
    batch = torch.randn(256, width, device=device)

    def backward(inputs: torch.Tensor = batch) -> None:
        model(inputs).square().mean().backward()

    median_s = partial(_median_s, engine, device, repetitions)
    alone_s = median_s(lambda: model.zero_grad(set_to_none=False), backward)
    layer_bytes = 4 * width * width
    optimizer = _optimizer(engine, list(model.parameters()), request, bucket_bytes=layer_bytes)

    def exchange() -> None:
        backward(batch[:1])  # gradients must come from somewhere: a 256th of the work
        optimizer.synchronize()

    def both() -> None:
        backward()
        optimizer.synchronize()

    both_s = median_s(lambda: optimizer.zero_grad(set_to_none=False), both)
    exchange_s = median_s(lambda: optimizer.zero_grad(set_to_none=False), exchange)
    report = of(optimizer).last_step
    assert report is not None
    assert report.finite
    return {
        "compression": name,
        "backward_ms": 1e3 * alone_s,
        "exchange_ms": 1e3 * exchange_s,
        "both_ms": 1e3 * both_s,
        "hidden": (alone_s + exchange_s - both_s) / exchange_s,
        "bus_bytes": report.bus_bytes,
        "dense_gradient_bytes": 6 * layer_bytes,
    }


def _optimizer(
    engine: Engine, parameters: list[nn.Parameter], request: Request, bucket_bytes: int
) -> ReducingOptimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    names = name_parameters(optimizer, None)
    named: dict[str, torch.Tensor] = {name: parameter for parameter, name in trainable(names).items()}
    # No check of replicas: it would run after a step that is timed.
    settings = Settings(bucket_bytes, 120.0, check_every=0)
    reducer = Reducer(named, request, engine.twin, ReduceOptions(), settings)
    return wrap(optimizer, names, reducer, 1, engine.rank, engine.world_size)


def _median_s(
    engine: Engine,
    device: torch.device,
    repetitions: int,
    prepare: Callable[[], object],
    call: Callable[[], object],
) -> float:
    """All ranks begin together: they share the device."""
    times = []
    for repetition in range(repetitions + 3):
        prepare()
        _finish(device)
        engine.allgather(torch.zeros(1), [1] * engine.world_size)
        start = time.perf_counter()
        call()
        _finish(device)
        if repetition >= 3:
            times.append(time.perf_counter() - start)
    engine.take_calls()
    return sorted(times)[len(times) // 2]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def page(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    return "\n".join(line for found in report.values() for line in table(found))


if __name__ == "__main__":
    main()
