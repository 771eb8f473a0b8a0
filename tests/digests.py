"""Digests of what fixed requests train: the same bits from commit to commit.

    python -m tests.digests in-process                                       # prints JSON
    mpirun -np 3 --map-by :OVERSUBSCRIBE --bind-to none python -m tests.digests mpi horovod

digests.json holds both outputs, but for what guests bring, each in a file of its own. Gradients are whole numbers over
2^24 and the learning rate is a power of two, so that no result depends on how a machine adds products, draws normal
numbers or sums in vectors.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hvd_compress.compressors import (
    BlockQuantizer,
    Cast,
    CompressedMomentum,
    EFSign,
    Natural,
    OneBit,
    TopK,
)
from hvd_compress.request.request import Request
from tests.brought import brought
from tests.harness import SHAPES, hash_name

STEPS = 20
FILE = Path(__file__).with_suffix(".json")
SPARSE = "embedding.weight"

TOPK = {"topk": TopK(0.05), "lwtopk": TopK(0.05, layerwise=True), "all": TopK(1.0)}
TREES = ("ring", "tree")
REQUESTS = {
    **{
        f"{kind}-{collective}{'-' * bool(algorithm)}{algorithm}": Request(compressor, collective, algorithm or "auto")
        for kind, compressor in TOPK.items()
        for collective, algorithms in {"auto": ("",), "allgather": ("", "ring", "bruck"), "star": ("", *TREES)}.items()
        for algorithm in algorithms
    },
    **{f"topk-var{'-' * bool(a)}{a}": Request(TopK(0.05), "var", a or "auto") for a in ("", "recursive_doubling")},
    "lwtopk-var": Request(TopK(0.05, layerwise=True), "var"),
    "topk-artopk": Request(TopK(0.05), "artopk"),
    "efsign": Request(EFSign()),
    "efsign-bucket": Request(EFSign(layerwise=False)),
    "int8": Request(BlockQuantizer(8), "alltoall-allgather"),
    "int4": Request(BlockQuantizer(4), "allgather"),
    "int4-stochastic": Request(BlockQuantizer(4, stochastic=True), "alltoall-allgather"),
    "int3": Request(BlockQuantizer(3), "allgather"),
    "five-levels": Request(BlockQuantizer(2.5), "alltoall-allgather"),
    "int2": Request(BlockQuantizer(2, 128), "alltoall-allgather"),
    "onebit": Request(OneBit(128), "alltoall-allgather"),
    "natural": Request(Natural(), "allgather"),
    "star-delta": Request(TopK(0.05, index_coding="delta"), "star"),
    "topk-int8-delta": Request(TopK(0.05, values="int8", index_coding="delta"), "allgather"),
    "momentum": Request(CompressedMomentum(0.875, OneBit(64, means=1)), "alltoall-allgather"),
    "fp16": Request(Cast(torch.float16)),
    "bf16": Request(Cast(torch.bfloat16)),
    **{f"dense-{a}": Request(Cast(), "auto", a) for a in ("auto", *TREES, "recursive_doubling", "rabenseifner")},
    **dict(brought("DIGESTS")),
}
"""Every compressor with every collective that carries it, but for those whose products or fits are torch's
or the C library's (PowerSGD, ATOMO, DeMo, SIDCo), and collectives that heed hosts; of algorithms,
those that all engines here can force."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}


def parameters(dtype: torch.dtype) -> dict[str, torch.nn.Parameter]:
    """The same values on every rank; one parameter gets sparse gradients."""
    shapes = {**SHAPES, SPARSE: (11, 6)}
    return {name: torch.nn.Parameter(_whole(shape, hash_name(name)).to(dtype)) for name, shape in shapes.items()}


def _whole(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Whole numbers over 2^24, between -1 and 1: few of a size, so that ties are rare."""
    drawn = torch.randint(-(2**24), 2**24, shape, generator=torch.Generator().manual_seed(seed))
    return drawn.to(torch.float64) / 2**24


def backward(parameters: Mapping[str, torch.nn.Parameter], rank: int, step: int) -> None:
    """Give every parameter its gradient through autograd."""
    losses = []
    for name, parameter in parameters.items():
        seed = hash_name(name) * 1_000_003 + rank * 1009 + step
        factor = _whole(tuple(parameter.shape), seed).to(parameter.dtype)
        if name == SPARSE:
            rows = torch.randint(0, parameter.shape[0], (4,), generator=torch.Generator().manual_seed(seed))
            looked_up = torch.nn.functional.embedding(rows, parameter, sparse=True)
            losses.append((looked_up * factor[:4]).sum())
        else:
            losses.append((parameter * factor).sum())
    sum(losses).backward()


def digest(parameters: Mapping[str, torch.nn.Parameter], optimizer: Any, rank: int) -> str:
    """Train, and return a digest of the parameters after all steps, which is the same on every rank."""
    for step in range(STEPS):
        backward(parameters, rank, step)
        optimizer.step()
        optimizer.zero_grad()
    found = hashlib.sha256()
    for name, parameter in parameters.items():
        found.update(name.encode() + parameter.detach().double().numpy().tobytes())
    return found.hexdigest()[:16]


def cases() -> dict[str, tuple[Request, torch.dtype]]:
    """All requests with fp32 gradients, and with the other dtypes those that leave all to the package."""
    plain = {name: request for name, request in REQUESTS.items() if request.algorithm == "auto"}
    found = {f"{name}, fp32": (request, torch.float32) for name, request in REQUESTS.items()}
    for label, dtype in DTYPES.items():
        found |= {f"{name}, {label}": (request, dtype) for name, request in plain.items()}
    return found


def recorded() -> dict[str, dict[str, str]]:
    """By engine, then by case and number of ranks."""
    found: dict[str, dict[str, str]] = {}
    for file in (FILE, *brought("DIGEST_FILES")):
        for engine, digests in json.loads(file.read_text()).items():
            found[engine] = found.get(engine, {}) | digests
    return found


def in_process(request: Request, dtype: torch.dtype, size: int) -> str:
    """Return the digest that all in-process ranks come to."""
    from hvd_compress.engines.inprocess import run_ranks
    from tests.harness import make_optimizer

    def body(engine: Any) -> str:
        own = parameters(dtype)
        return digest(own, make_optimizer(own, request, lambda: engine, engine.rank, size, lr=0.125), engine.rank)

    (found,) = set(run_ranks(size, body))
    return found


def launched(request: Request, dtype: torch.dtype, engine: str) -> str:
    """Return the digest that this rank of a job comes to, by the drop-in."""
    from dataclasses import replace

    import hvd_compress.torch as hvd

    own = parameters(dtype)
    sgd = torch.optim.SGD(list(own.values()), lr=0.125)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=own.items(), compression=replace(request, engine=engine))
    return digest(own, optimizer, hvd.rank())


def forcible(request: Request, engine: str) -> bool:
    """Whether an engine of a job of several ranks can do what is asked for."""
    return engine == "mpi" or request.algorithm == "auto"


def main(engines: list[str]) -> None:
    found: dict[str, dict[str, str]] = {}
    if engines == ["in-process"]:
        found["in-process"] = {
            f"{name}, {size}": in_process(*case, size) for name, case in cases().items() for size in (1, 2, 3, 4)
        }
        print(json.dumps(found, indent=1))
        return
    os.environ |= {"HOROVOD_FUSION_THRESHOLD": "600", "HVD_COMPRESS_ADAPT": "0"}
    import hvd_compress.torch as hvd

    hvd.init()
    for engine in engines:
        found[engine] = {
            f"{name}, {hvd.size()}": launched(*case, engine)
            for name, case in cases().items()
            if forcible(case[0], engine)
        }
    if hvd.rank() == 0:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
