"""DDP, FSDP2, embedding tables and clustered attention with CUDA tensors, two ranks sharing the GPU over Gloo.

    python -m benchmarks.gpu.front_ends [--device cuda] [--json FILE]

`ddp` compares reduced gradients with the CPU's, byte by byte, and times steps next to DDP's own and its fp16 hook;
`fsdp` compares gradients with FSDP2's own; `embedding` and `attention` compare with the same program on the CPU. Each
is a job of its own, which is killed at its share of `--limit-s`; FILE is written after each. What this machine lacks is
left out. The exit status is 1 where a job fails, results differ, ranks are not equal, or something is not finite.
`--device cpu` plays the whole of it without a GPU.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import nn

from benchmarks.frame.store import read, write
from benchmarks.gpu.agreement import faults_of_all, not_finite, of_all_ranks, ranks_equal
from benchmarks.gpu.building import is_built
from benchmarks.gpu.ddp import Found, ddp

RANKS = 2
TIMEOUT_S = 60
"""How long ranks wait for one another. The first wait for a process group may be for a GPU that starts."""


@click.command(help=__doc__)
@click.option("--device", default="cuda", show_default=True)
@click.option("--width", default=2048, show_default=True, help="Of DDP's 6 square layers, and at most of FSDP2's.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all that was found to this file.")
@click.option("--job", "names", multiple=True, type=click.Choice(["ddp", "fsdp", "embedding", "attention"]))
@click.option("--limit-s", default=110.0, show_default=True, help="Seconds that all jobs together may take.")
def main(device: str, width: int, json_file: Path | None, names: tuple[str, ...], limit_s: float) -> None:
    if torch.device(device).type == "cuda":
        if not torch.cuda.is_available():
            raise click.ClickException("torch sees no GPU here; --device cpu plays this without one")
        if not is_built():
            raise click.ClickException("hvd_compress is not built for the CPU and the GPU here: `make gpu-check` does")
    report: dict[str, Any] = {}
    end_s = time.monotonic() + limit_s
    wanted = list(names or JOBS)
    for place, name in enumerate(wanted):
        kept_s = (len(wanted) - place - 1) * limit_s / 6  # for those that come after
        report[name] = run(name, device, width, end_s - kept_s - time.monotonic())
        click.echo(f"{name}: {json.dumps(report[name], indent=1)}")
        if json_file:
            write(json_file, report)
    sys.exit(int(any(found.get("failure") or found.get("faults") for found in report.values())))


def run(name: str, device: str, width: int, limit_s: float) -> dict[str, Any]:
    """Return what a job has found until it ended, failed, or was killed: the others run all the same."""
    failure: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        end_s = time.monotonic() + limit_s
        ranks = RANKS if name != "attention" else 1
        job = multiprocessing.spawn(be_rank, (name, device, width, folder, end_s), nprocs=ranks, join=False)
        try:
            while not job.join(max(0.0, end_s - time.monotonic())):
                if time.monotonic() >= end_s:
                    failure = {"failure": f"no end within {limit_s:.0f} s"}
                    break
        except (multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException) as error:
            failure = {"failure": str(error)[-2000:]}
        finally:
            for process in job.processes:
                process.kill()
                process.join()
        return {**(read(Path(folder, "found")) or {}), **failure}


def be_rank(rank: int, name: str, device: str, width: int, folder: str, end_s: float) -> None:
    faulthandler.dump_traceback_later(max(1.0, end_s - 2 - time.monotonic()))  # where it hangs
    os.environ["HVD_COMPRESS_TIMEOUT_S"] = str(TIMEOUT_S)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // RANKS))
    if name != "attention":
        dist.init_process_group(
            "cpu:gloo,cuda:gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS,
            timeout=timedelta(seconds=TIMEOUT_S),
        )  # fmt: skip
    found: dict[str, Any] = {}
    try:
        for key, value in JOBS[name](torch.device(device), width):
            found[key] = value
            if rank == 0:
                write(Path(folder, "found"), found)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("hvd_compress", "benchmarks"):
            raise
        if rank == 0:
            write(Path(folder, "found"), {**found, "left out": f"{type(error).__name__}: {error}"})
    sys.stdout.flush()
    if name != "attention":
        dist.barrier()
    os._exit(0)  # threads of Gloo may still be freeing tensors


def fsdp(device: torch.device, width: int) -> Found:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    import hvd_compress.ddp as hc
    import hvd_compress.fsdp as fsdp_hc

    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        yield "left out", f"FSDP2 of torch {torch.__version__} takes no custom collectives"
        return
    features = min(width, 512)

    def gradients(sizes: tuple[int, ...], request: Any) -> torch.Tensor:
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=("replicas", "shards")[-len(sizes) :])
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Sequential(nn.Linear(features, features), nn.GELU()) for _ in range(4))).to(device)
        for block in model:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if request is not None:
            fsdp_hc.compress(model, request)
        for step in range(6):
            model.zero_grad()
            torch.manual_seed(100 * step + dist.get_rank())
            model(torch.randn(64, features, device=device)).square().mean().backward()
        return torch.cat([p.grad.to_local().reshape(-1).cpu() for p in model.parameters()])

    faults: list[str] = []
    for sizes in ((RANKS,), (RANKS, 1)):
        plain = gradients(sizes, None)
        for name in ("int8", "int4"):
            case, own = f"{name}, mesh of {sizes}", gradients(sizes, getattr(hc.Compression, name)())
            faults += not_finite(case, own)
            if len(sizes) == 2:
                faults += [] if ranks_equal(own) else [f"{case}: replicas differ"]
            yield case, {"relative error": ((own - plain).norm() / plain.norm()).item()}
            yield "faults", faults_of_all(faults)


def embedding(device: torch.device, _: int) -> Found:
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
    yield "rows are on", kind
    yield "first and last loss", [ours[0], ours[-1]]
    largest = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    yield "largest relative difference from the CPU's", max(of_all_ranks(largest))
    yield "faults", faults_of_all(not_finite("losses", torch.tensor(ours)))


def attention(device: torch.device, _: int) -> Found:
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
    yield "largest difference from the CPU's", (first - second).abs().max().item()
    yield "of the model's own", (second - own).abs().max().item()
    yield "generated", list(tokens.shape)
    yield "faults", not_finite("logits", second)


JOBS = {"ddp": ddp, "fsdp": fsdp, "embedding": embedding, "attention": attention}

if __name__ == "__main__":
    main()
