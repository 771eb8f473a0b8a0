"""The names of horovod.torch over this runtime; `hvd_compress.torch` adds what knows modules and optimizers."""

from __future__ import annotations

from importlib.util import find_spec

import torch
import torch.distributed as dist

from hvd_compress.errors import CommunicationError
from hvd_compress.runtime.allreduces import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from hvd_compress.runtime.compression import Compression
from hvd_compress.runtime.handles import Adasum, Average, Max, Min, Product, Sum, join, poll, synchronize
from hvd_compress.runtime.objects import allgather_object, broadcast_object
from hvd_compress.runtime.operations import (
    allgather,
    allgather_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
)
from hvd_compress.runtime.world import (
    ProcessSet,
    add_process_set,
    cross_rank,
    cross_size,
    global_process_set,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    remove_process_set,
    shutdown,
    size,
    world,
)
from hvd_compress.warned import warn_caller

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]

HorovodInternalError = CommunicationError
"""What a collective raises where another rank is gone."""


def mpi_built() -> bool:
    """Return whether ranks can meet over MPI: mpi4py is installed."""
    return find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Return whether they have met over MPI."""
    return is_initialized() and world().engine.name == "MPI"


def mpi_threads_supported() -> bool:
    """Return whether MPI was started with MPI_THREAD_MULTIPLE, which the engine over MPI requires."""
    return mpi_enabled()


def gloo_built() -> bool:
    """Return whether torch has gloo."""
    return dist.is_available() and dist.is_gloo_available()


def gloo_enabled() -> bool:
    """Return whether ranks have met over gloo."""
    return is_initialized() and world().engine.name == "torch"


def nccl_built() -> int:
    """Return 0: these collectives do not move over NCCL; compressed gradients do, where torch.distributed has it."""
    return 0


def cuda_built() -> bool:
    """Return whether torch has CUDA: tensors of GPUs are taken everywhere, and moved through the host."""
    return torch.version.cuda is not None


def rocm_built() -> bool:
    """Return whether torch has ROCm."""
    return torch.version.hip is not None


def ccl_built() -> bool:
    """Return False: oneCCL is not used."""
    return False


def ddl_built() -> bool:
    """Return False: DDL is not used."""
    return False


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Warn: this runtime writes no timeline of its own."""
    del mark_cycles
    warn_caller(
        f"{file_path} is not written: HVD_COMPRESS_TIMELINE=FILE traces how gradients are compressed and "
        "exchanged, and torch.profiler the rest"
    )


def stop_timeline() -> None:
    """Do nothing, as there is none."""
