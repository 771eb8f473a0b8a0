"""Which engine carries the bytes: one answer for all ranks, found before anything else is communicated.

Each engine is an `EngineSpec` in SPECS. The functions of a spec import its adapter, since most programs lack
some of the packages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvd_compress.checks import check_choice
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.engines.mpi_environment import launched_by_mpi
from hvd_compress.engines.sockets import SocketEngine
from hvd_compress.errors import ConfigError, MissingPackageError, UnsupportedError
from hvd_compress.extras import needed

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


@dataclass(frozen=True)
class EngineSpec:
    """An engine that can be asked for by name.

    Attributes:
        obstacle: says why this process cannot use it over the ranks of an engine that exists, or returns None. Local.
        make: returns it over the same ranks; it may be that engine itself. Collective over them.
    """

    name: str
    obstacle: Callable[[Engine], str | None]
    make: Callable[[Engine], Engine]


def agree_on_engine(
    name: str, bootstrap: Engine, preferred: Sequence[str], specs: Sequence[EngineSpec] | None = None
) -> Engine:
    """Return the engine `name` over the ranks of `bootstrap`. Collective: one allgather of a few hundred bytes.

    "auto" takes the first of `preferred`, the same on all ranks, that every rank can use. A process is asked for
    obstacles to those alone that are in question: to look for one may start a library.

    Args:
        specs: the engines there are (SPECS).

    Raises, on every rank alike: ConfigError for an unknown name or different names on different ranks;
    UnsupportedError where some rank cannot use the engine of this name, or any of `preferred`.
    """
    by_name = {spec.name: spec for spec in (SPECS if specs is None else specs)}
    asked = preferred if name == "auto" else [name]
    mine = {one: by_name[one].obstacle(bootstrap) for one in asked if one in by_name}
    answers = dict(zip(bootstrap.ranks, bootstrap.allgather_json([name, mine]), strict=True))
    _require_one_name({rank: asked_name for rank, (asked_name, _) in answers.items()}, ("auto", *by_name))
    reasons = {
        one: [(rank, told[one]) for rank, (_, told) in answers.items() if told[one] is not None] for one in asked
    }
    for one in asked:
        if not reasons[one]:
            return by_name[one].make(bootstrap)
    words = "; ".join(
        f"{one} on " * (name == "auto") + f"rank {rank}: {why}" for one in asked for rank, why in reasons[one]
    )
    remedy = "" if name == "auto" else ": leave `engine` at 'auto', or launch the job as that engine needs it"
    raise UnsupportedError(f"engine {name!r} cannot be used ({words}){remedy}")


def choose_engine(
    name: str = "auto", process_set: Any = None, api: Any = None, timeout_s: float | None = None
) -> Engine:
    """Return the engine `name` over a process set of Horovod's API (default: all ranks). Collective over its members.

    "auto" takes MPI where the job was started by mpirun and every member can use it, else Horovod; without Horovod,
    torch.distributed comes before what stands for it, and where ranks come and go sockets. The members agree over that
    API first.

    Args:
        api: a module that has the names of horovod.torch, by default that itself.
        timeout_s: how long a collective of torch.distributed may take, by default torch's own limit.

    Raises as `agree_on_engine` does, and as HorovodEngine does.
    """
    from hvd_compress.engines.horovod import HorovodEngine

    bootstrap = HorovodEngine(process_set, api)
    # MPI is of no use to a process that was not launched for it, though it may have it where it asks by name.
    alone = bootstrap.job_size == 1 and not launched_by_mpi()
    others = ("mpi",) if bootstrap.is_horovods else ("sockets", "mpi", "torch")
    specs = [torch_spec(timeout_s=timeout_s) if each.name == "torch" else each for each in SPECS]
    specs += [] if bootstrap.is_horovods else [_sockets_spec(api)]
    return agree_on_engine(name, bootstrap, ("horovod",) if alone else (*others, "horovod"), specs)


def choose_torch_engine(
    name: str = "auto",
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | None = None,
    timeout_s: float | None = None,
) -> Engine:
    """Return the engine `name` over a process group of torch.distributed (default: all ranks). Collective over it.

    "auto" takes torch.distributed, with the backend of `group`. "mpi" takes a job that mpirun started, "horovod" one
    that has called hvd.init(), each with the ranks of torch.distributed. The members agree over gloo first.

    Args:
        device: this rank's GPU, for NCCL, if it is not torch's current one.
        timeout_s: how long a collective of torch.distributed may take, by default torch's own limit.

    Raises as `agree_on_engine` does, and ConfigError where torch.distributed is not initialised or this rank is not in
    `group`.
    """
    from hvd_compress.engines.torch_distributed import TorchEngine

    bootstrap = TorchEngine(group, backend="gloo", timeout_s=timeout_s, thorough=True)
    spec = torch_spec(group, device, timeout_s)
    return agree_on_engine(name, bootstrap, ("torch",), [spec if one.name == "torch" else one for one in SPECS])


def choose_arrivals(name: str = "auto", process_set: Any = None, api: Any = None) -> Arrivals:
    """Return by what the members of a process set of Horovod's API tell each other who waits. Nothing is communicated.

    MPI's name service where the job was started by mpirun and the engine may be MPI, the launcher's server under
    `horovodrun --gloo`, torch's store where Horovod's API stands on that, or nothing. Each rank finds out by itself:
    where one cannot use MPI, the others name it as missing, and nothing else changes.
    """
    from hvd_compress.engines.horovod import imported, is_horovod, process_set_ranks
    from hvd_compress.engines.rendezvous_arrivals import RendezvousArrivals, rendezvous_url

    hvd = imported() if api is None else api
    ranks = process_set_ranks(process_set, hvd) if process_set is not None else list(range(hvd.size()))
    if name != "horovod" and launched_by_mpi() and mpi_obstacle(hvd.rank(), hvd.size(), "Horovod") is None:
        from hvd_compress.engines.mpi_arrivals import MpiArrivals

        return MpiArrivals(ranks)
    if not is_horovod(hvd):
        engine = hvd.world().engine
        return engine.arrivals(ranks) if isinstance(engine, SocketEngine) else _store_arrivals(ranks, hvd)
    url = rendezvous_url()
    return RendezvousArrivals(url, ranks, hvd.rank()) if url is not None else Arrivals()


def choose_torch_arrivals(group: dist.ProcessGroup | None = None) -> Arrivals:
    """Return by what the members of a process group (default: all ranks) tell each other who waits: the job's store.

    Nothing is communicated. Raises ConfigError where torch.distributed is not initialised or this rank is not in
    `group`.
    """
    from hvd_compress.engines.store_arrivals import StoreArrivals

    return StoreArrivals.of(group)


def _store_arrivals(ranks: Sequence[int], api: Any) -> Arrivals:
    """Return those over torch's store where torch.distributed counts ranks as `api` does."""
    import torch.distributed as dist

    from hvd_compress.engines.store_arrivals import StoreArrivals

    is_there = dist.is_available() and dist.is_initialized()
    counts_alike = is_there and (dist.get_rank(), dist.get_world_size()) == (api.rank(), api.size())
    return StoreArrivals.of(ranks=ranks) if counts_alike else Arrivals()


def _require_one_name(names: dict[int, str], known: Sequence[str]) -> None:
    asked = {name: [rank for rank in names if names[rank] == name] for name in names.values()}
    if len(asked) > 1:
        words = ", ".join(f"{name!r} on ranks {ranks}" for name, ranks in asked.items())
        raise ConfigError(f"all ranks must ask for the same engine, but they asked for {words}")
    (name,) = asked
    check_choice("engine", name, known)


def mpi_obstacle(rank: int, size: int, counted_by: str) -> str | None:
    """Say why this process cannot use MPI in a job where it is `rank` of `size`, or return None where it can.

    Importing mpi4py starts MPI, which is of no use in a process that was not launched for it; a single process may
    have it all the same.
    """
    if not launched_by_mpi() and size > 1:
        return "not launched by mpirun"
    try:
        from hvd_compress.engines.mpi_library import MPI
    except MissingPackageError as error:
        return str(error)
    if MPI.Is_finalized():
        return "MPI has been shut down"
    if (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) != (rank, size):
        mpi = f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}"
        return f"MPI counts {mpi} where {counted_by} counts rank {rank} of {size}"
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "MPI was started without MPI_THREAD_MULTIPLE"
    return None


def _obstacle_to_mpi(bootstrap: Engine) -> str | None:
    return mpi_obstacle(bootstrap.ranks[bootstrap.rank], bootstrap.job_size, bootstrap.name)


def _make_mpi(bootstrap: Engine) -> Engine:
    from hvd_compress.engines.mpi import MpiEngine

    return MpiEngine(ranks=bootstrap.ranks if bootstrap.world_size < bootstrap.job_size else None)


def _obstacle_to_horovod(bootstrap: Engine) -> str | None:
    from hvd_compress.engines.horovod import HorovodEngine

    if isinstance(bootstrap, HorovodEngine):
        return None
    if bootstrap.world_size < bootstrap.job_size:
        return "Horovod has no process set of this group"
    try:
        with needed("horovod", "engine 'horovod'"):
            import horovod.torch as hvd
    except MissingPackageError as error:
        return str(error)
    if not hvd.is_initialized():
        return "hvd.init() has not been called"
    return _differing("Horovod", hvd.rank(), hvd.size(), bootstrap)


def _make_horovod(bootstrap: Engine) -> Engine:
    from hvd_compress.engines.horovod import HorovodEngine

    return bootstrap if isinstance(bootstrap, HorovodEngine) else HorovodEngine()


def _sockets_spec(api: Any) -> EngineSpec:
    """Return the spec of another engine like that of a runtime whose ranks come and go."""

    def obstacle(bootstrap: Engine) -> str | None:
        if not isinstance(api.world().engine, SocketEngine):
            return "ranks do not come and go in this job"
        return None if bootstrap.world_size == bootstrap.job_size else "it joins all ranks of the job"

    def make(bootstrap: Engine) -> Engine:
        engine: SocketEngine = api.world().engine
        return engine.another()

    return EngineSpec("sockets", obstacle, make)


def torch_spec(
    group: dist.ProcessGroup | None = None, device: torch.device | None = None, timeout_s: float | None = None
) -> EngineSpec:
    """Return the spec of TorchEngine, with the backend of `group` and these of its arguments."""

    def obstacle(bootstrap: Engine) -> str | None:
        import torch.distributed as dist

        from hvd_compress.engines.torch_distributed import BACKENDS, backend_of, obstacle_to

        if not dist.is_available() or not dist.is_initialized():
            return "torch.distributed.init_process_group() has not been called"
        backend = backend_of(group)
        if backend not in BACKENDS:
            return f"it knows the backends {', '.join(BACKENDS)}, and this process group has {backend!r}"
        differing = _differing("torch.distributed", dist.get_rank(), dist.get_world_size(), bootstrap)
        return differing or obstacle_to(backend)

    def make(bootstrap: Engine) -> Engine:
        from hvd_compress.engines.torch_distributed import TorchEngine, backend_of

        backend = backend_of(group)
        control = bootstrap if isinstance(bootstrap, TorchEngine) else None
        if control is not None and control.backend == backend:
            return control
        return TorchEngine(ranks=bootstrap.ranks, backend=backend, device=device, timeout_s=timeout_s, control=control)

    return EngineSpec("torch", obstacle, make)


def _differing(counted_by: str, rank: int, size: int, bootstrap: Engine) -> str | None:
    """Say that a package counts the ranks of the job in another way than `bootstrap`, or return None."""
    own = bootstrap.ranks[bootstrap.rank]
    if (rank, size) == (own, bootstrap.job_size):
        return None
    return f"{counted_by} counts rank {rank} of {size} where {bootstrap.name} counts rank {own} of {bootstrap.job_size}"


SPECS = [
    EngineSpec("mpi", _obstacle_to_mpi, _make_mpi),
    EngineSpec("horovod", _obstacle_to_horovod, _make_horovod),
    torch_spec(),
]
"""The engines that are known by name: ENGINES in base.py without "auto", in the same order."""
