"""One rank of a training of which memory is measured: its front end, compression and model."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WIDTH = 1024
"""Of a square layer."""
STEPS = {"auto": 40}
"""What auto() tries is over after these; else FEW."""
FEW = 6


@dataclass(frozen=True)
class Held:
    """Bytes of a process.

    Attributes:
        standing: of its own, after malloc has given back what is free.
        resident: of its own, as they are between two steps.
        peak: the most that it had since the model was made, pages of files left out as they are at the end.
    """

    standing: int
    resident: int
    peak: int


def train(front: str, compression: str, layers: int) -> dict[str, int]:
    """Train on this rank; return Held, and the number of elements."""
    os.environ["HVD_COMPRESS_ADAPT"] = "1"
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    numel = sum(parameter.numel() for parameter in model.parameters())
    forget_peak()
    step = FRONTS[front](model, compression)
    batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))
    for _ in range(STEPS.get(compression, FEW)):
        step(batch)
    return {"numel": numel, **asdict(held())}


def held() -> Held:
    peak = _status("VmHWM") - _status("RssFile") - _status("RssShmem")
    gc.collect()
    resident = _own()
    ctypes.CDLL(None).malloc_trim(0)
    return Held(_own(), resident, peak)


def forget_peak() -> None:
    """Let the peak begin with what is there now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def _status(name: str, file: str = "status") -> int:
    lines = (line.split() for line in Path("/proc/self", file).read_text().splitlines())
    return next(int(words[1]) * 1024 for words in lines if words[0] == f"{name}:")


def _own() -> int:
    return _status("Anonymous", "smaps_rollup")


Step = Callable[[torch.Tensor], None]


def _step(model: Any, optimizer: Any, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def _request(compression: str) -> Any:
    from hvd_compress.compression import Compression

    return getattr(Compression, compression)()


def ddp(model: torch.nn.Module, compression: str) -> Step:
    """DistributedDataParallel, with its own buckets of 25 MiB."""
    import hvd_compress.ddp as hc

    wrapped = DistributedDataParallel(model)
    if compression != "none":
        hc.compress(wrapped, _request(compression))
    sgd = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    return lambda batch: _step(wrapped, sgd, batch)


def drop_in(model: torch.nn.Module, compression: str) -> Step:
    """The optimizer of hvd_compress.torch over torch.distributed; uncompressed, an allreduce of each gradient."""
    from hvd_compress.engines.torch_distributed import TorchEngine
    from hvd_compress.frontends.optimizer.named_parameters import name_parameters, trainable
    from hvd_compress.frontends.optimizer.optimizer import wrap
    from hvd_compress.frontends.optimizer.reducer import ReduceOptions, Reducer
    from hvd_compress.settings import Settings

    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    if compression == "none":
        return lambda batch: _allreduced(model, sgd, batch)
    names = name_parameters(sgd, model.named_parameters())
    named = {name: parameter for parameter, name in trainable(names).items()}
    request = _request(compression)
    reducer = Reducer(named, request, TorchEngine, ReduceOptions(), Settings.from_environment())
    optimizer = wrap(sgd, names, reducer, 1, dist.get_rank(), dist.get_world_size())
    return lambda batch: _step(model, optimizer, batch)


def _allreduced(model: torch.nn.Module, sgd: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(dist.get_world_size())
    sgd.step()
    sgd.zero_grad()


def fsdp(model: torch.nn.Module, compression: str) -> Step:
    """FSDP2 with replicas (HSDP), a shard each: what replicas exchange is compressed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import hvd_compress.fsdp as hc

    mesh = init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicas", "shards"))
    return _sharded(model, compression, mesh, hc, fully_shard)


def fsdp_shards(model: torch.nn.Module, compression: str) -> Step:
    """FSDP2 with shards alone: reduce-scatters are compressed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import hvd_compress.fsdp as hc

    return _sharded(model, compression, init_device_mesh("cpu", (dist.get_world_size(),)), hc, fully_shard)


def fsdp_gathers(model: torch.nn.Module, compression: str) -> Step:
    """FSDP2 with shards alone: parameters travel compressed, gradients do not."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import hvd_compress.fsdp as hc

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if compression == "none":
        return _sharded(model, compression, mesh, hc, fully_shard)
    form = hc.differences(hc.Compression.int4()) if compression == "differences" else _request(compression)
    return _sharded(model, "dense", mesh, hc, fully_shard, parameters=form)


def _sharded(model: torch.nn.Module, compression: str, mesh: Any, hc: Any, fully_shard: Any, **options: Any) -> Step:
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if compression != "none":
        hc.compress(model, _request(compression), **options)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-3)
    return lambda batch: _step(model, sgd, batch)


FRONTS: dict[str, Callable[[torch.nn.Module, str], Step]] = {
    "DDP": ddp,
    "drop-in": drop_in,
    "FSDP2, replicas": fsdp,
    "FSDP2, shards": fsdp_shards,
    "FSDP2, parameters": fsdp_gathers,
}
