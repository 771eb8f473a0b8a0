"""DDP, FSDP2, embedding tables and clustered attention with CUDA tensors, two ranks sharing the GPU over Gloo.

    python -m benchmarks.gpu.front_ends [--device cuda] [--json FILE]

`ddp` compares reduced gradients with the CPU's, bit by bit, and times steps next to DDP's own and its fp16 hook; `fsdp`
compares gradients with FSDP2's own; `embedding` and `attention` compare with the same program on the CPU. Each is a job
of its own, and says in words where it cannot run here. The exit status is 1 where one fails, or results differ.
`--device cpu` plays the whole of it without a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc

RANKS = 2
COMPRESSIONS = {
    "dense": hc.Compression.dense(),
    "int8": hc.Compression.int8(),
    "int4": hc.Compression.int4(),
    "topk": hc.Compression.topk(0.01, scheme="allgather"),  # otherwise chosen by times
    "auto": hc.Compression.auto(),
}
ROUNDS = 15


@click.command(help=__doc__)
@click.option("--device", default="cuda", show_default=True)
@click.option("--width", default=2048, show_default=True, help="Of DDP's 6 square layers.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all that was found to this file.")
@click.option("--job", "names", multiple=True, type=click.Choice(["ddp", "fsdp", "embedding", "attention"]))
def main(device: str, width: int, json_file: Path | None, names: tuple[str, ...]) -> None:
    report = {}
    for name in names or JOBS:
        report[name] = run(name, device, width)
        click.echo(f"{name}: {json.dumps(report[name], indent=1)}")
    if json_file:
        json_file.write_text(json.dumps(report, indent=1))
    sys.exit(int(any(found.get("failure") or found.get("different from the CPU's") for found in report.values())))


def run(name: str, device: str, width: int) -> Any:
    """Return what rank 0 has found, or how the job failed: the others run all the same."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            multiprocessing.spawn(be_rank, (name, device, width, folder), nprocs=RANKS if name != "attention" else 1)
        except (multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException) as error:
            return {"failure": str(error)[-2000:]}
        return json.loads(Path(folder, "report.json").read_text())


def be_rank(rank: int, name: str, device: str, width: int, folder: str) -> None:
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // RANKS))
    if name != "attention":
        meeting = f"file://{folder}/meeting"
        dist.init_process_group("cpu:gloo,cuda:gloo", init_method=meeting, rank=rank, world_size=RANKS)
    found = JOBS[name](torch.device(device), width)
    if rank == 0:
        Path(folder, "report.json").write_text(json.dumps(found))
    sys.stdout.flush()
    if name != "attention":
        dist.barrier()
    os._exit(0)  # threads of Gloo may still be freeing tensors


def ddp(device: torch.device, width: int) -> Any:
    different = []
    for name, request in COMPRESSIONS.items():
        if name == "auto":  # it chooses by times
            continue
        ours, theirs = (_reduced(place, request) for place in (device, torch.device("cpu")))
        different += [f"{name}: step {n}" for n, (a, b) in enumerate(zip(ours, theirs, strict=True)) if not a.equal(b)]
    figures = {}
    for name in ("plain", "fp16 hook", *COMPRESSIONS):
        figures[name] = _timed(device, width, name)
    plain = figures["plain"]["step_ms"]
    return {
        "card": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "different from the CPU's": different,
        "figures": {name: {**each, "of plain": each["step_ms"] / plain} for name, each in figures.items()},
    }


class _Given(nn.Module):
    """Parameters whose gradients are what forward() is given."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(333_333,), (7, 47_619), (1,), (333_335,)]
        self.all = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, given: list[torch.Tensor]) -> torch.Tensor:
        return sum(((p * g).sum() for p, g in zip(self.all, given, strict=True)), torch.zeros(()))


def _reduced(device: torch.device, request: Any) -> list[torch.Tensor]:
    """Return the reduced gradients of four steps, the same given on every device."""
    model = DistributedDataParallel(_Given().to(device), bucket_cap_mb=1)
    hc.compress(model, request)
    found = []
    for step in range(4):
        draw = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
        given = [torch.randn(p.shape, generator=draw).to(device) for p in model.module.all]
        model.zero_grad()
        model(given).backward()
        found.append(torch.cat([p.grad.reshape(-1).cpu() for p in model.module.all]))
    return found


def _timed(device: torch.device, width: int, name: str) -> dict[str, Any]:
    """Return medians over rounds of the slower rank's milliseconds, and whether ranks end with the same bits.

    `hidden` is the share of the exchange, or of the computation where that is shorter, that the other one covered.
    """
    torch.manual_seed(1)
    layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6))).to(device)
    model = DistributedDataParallel(layers, bucket_cap_mb=4 * width * width / 2**20)
    if name in COMPRESSIONS:
        hc.compress(model, COMPRESSIONS[name])
    elif name == "fp16 hook":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(2 + dist.get_rank())
    batch = torch.randn(2 * width, width, device=device)

    def step(rows: torch.Tensor = batch) -> None:
        optimizer.zero_grad(set_to_none=False)
        model(rows).square().mean().backward()
        optimizer.step()

    def alone() -> None:
        with model.no_sync():
            step()

    step_ms = _median_ms(device, step, 40 if name == "auto" else 5)
    exchange_ms = _median_ms(device, lambda: step(batch[:1]))
    values = torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters()])
    compute_ms = _median_ms(device, alone)
    others = [torch.empty_like(values) for _ in range(RANKS)]
    dist.all_gather(others, values)
    found = {
        "step_ms": step_ms,
        "exchange_ms": exchange_ms,
        "compute_ms": compute_ms,
        "hidden": (compute_ms + exchange_ms - step_ms) / min(compute_ms, exchange_ms),
        "ranks equal": others[0].equal(others[1]),
    }
    if name in COMPRESSIONS:
        found["sent_bytes"] = hc.last_step(model).sent_bytes
        if name == "auto":
            found["chosen"] = sorted({str(each) for each in hc.decisions(model).values()})
    return found


def _median_ms(device: torch.device, step: Callable[[], None], warm_up: int = 3) -> float:
    times = []
    for _ in range(warm_up + ROUNDS):
        _finish(device)
        dist.barrier()
        begun = time.perf_counter()
        step()
        _finish(device)
        times.append(time.perf_counter() - begun)
    slowest = torch.tensor(times[warm_up:])
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return 1e3 * slowest.median().item()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fsdp(device: torch.device, _: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    import hvd_compress.fsdp as fsdp_hc

    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        return {"left out": f"FSDP2 of torch {torch.__version__} takes no custom collectives"}

    def gradients(sizes: tuple[int, ...], request: Any) -> torch.Tensor:
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.GELU()) for _ in range(4))).to(device)
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if request is not None:
            fsdp_hc.compress(model, request)
        for step in range(6):
            model.zero_grad()
            torch.manual_seed(100 * step + dist.get_rank())
            model(torch.randn(64, 512, device=device)).square().mean().backward()
        return torch.cat([p.grad.to_local().reshape(-1).cpu() for p in model.parameters()])

    found = {}
    for sizes in ((RANKS,), (RANKS, 1)):
        plain = gradients(sizes, None)
        for name in ("int8", "int4"):
            error = (gradients(sizes, getattr(hc.Compression, name)()) - plain).norm() / plain.norm()
            found[f"{name}, mesh of {sizes}"] = {"relative error": error.item()}
    return found


def embedding(device: torch.device, _: int) -> Any:
    from hvd_compress.embedding import CachedEmbedding, Lookahead, RowwiseAdagrad

    def trained(place: torch.device) -> tuple[list[float], str]:
        rows = CachedEmbedding([3000, 305], 16, optimizer=RowwiseAdagrad(0.05), name=f"rows of {place}", seed=3)
        draw = torch.Generator().manual_seed(dist.get_rank())
        batches = [
            {"ids": torch.stack([torch.randint(n, (64,), generator=draw) for n in (3000, 305)], 1).to(place)}
            for _ in range(30)
        ]
        losses, kind = [], ""
        with Lookahead(batches, {"ids": rows}, cache_rows=2000) as loader:
            for batch in loader:
                found = rows(batch["ids"])
                loss = (found - 0.25).square().mean()
                loss.backward()
                losses.append(loss.item())
                kind = found.device.type
        return losses, kind

    (ours, kind), (theirs, _kind) = trained(device), trained(torch.device("cpu"))
    return {
        "rows are on": kind,
        "first and last loss": [ours[0], ours[-1]],
        "largest relative difference from the CPU's": max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True)),
    }


def attention(device: torch.device, _: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    from hvd_compress.attention import apply, find_clusters, remove

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=256, n_embd=256, n_layer=4, n_head=8, n_positions=512)
    model = GPT2LMHeadModel(config).eval()
    samples = [torch.randint(256, (64,)).tolist() for _ in range(8)]
    counts = find_clusters(model, samples, cache_share=0.8)
    ids = torch.randint(256, (4, 100))
    logits = {}
    for place in (torch.device("cpu"), device):
        model.to(place)
        with torch.no_grad():
            own = model(ids.to(place)).logits.cpu()
            apply(model, counts)
            logits[place.type] = model(ids.to(place)).logits.cpu()
            tokens = model.generate(ids[:, :20].to(place), max_new_tokens=50, do_sample=False, pad_token_id=0)
            remove(model)
    first, second = logits["cpu"], logits[device.type]
    return {
        "largest difference from the CPU's": (first - second).abs().max().item(),
        "of the model's own": (second - own).abs().max().item(),
        "generated": list(tokens.shape),
    }


JOBS = {"ddp": ddp, "fsdp": fsdp, "embedding": embedding, "attention": attention}

if __name__ == "__main__":
    main()
