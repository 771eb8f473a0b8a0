"""Which engine carries the bytes: one answer for all ranks, found before anything else is communicated."""

from __future__ import annotations

from typing import Any

from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import ENGINES, Engine
from hvd_compress.engines.horovod import HorovodEngine, process_set_ranks
from hvd_compress.engines.mpi_environment import launched_by_mpi
from hvd_compress.engines.rendezvous_arrivals import RendezvousArrivals, rendezvous_url
from hvd_compress.errors import ConfigError, MissingPackageError, UnsupportedError


def choose_engine(name: str = "auto", process_set: Any = None) -> Engine:
    """Return the engine `name` over a Horovod process set (default: all ranks). Collective over its members.

    "auto" takes MPI where the job was started by mpirun and every member can use it, else Horovod. The members agree
    over Horovod first, in one allgather of a few hundred bytes.

    Raises, on every member alike: ConfigError for an unknown name or different names on different ranks;
    UnsupportedError where "mpi" was asked for and some rank cannot use it.
    """
    horovod = HorovodEngine(process_set)
    ranks = process_set_ranks(process_set) if process_set is not None else None
    obstacle = _obstacle_to_mpi(name) if name in ("auto", "mpi") else None
    answers = dict(zip(horovod.ranks, map(tuple, horovod.allgather_json((name, obstacle))), strict=True))
    _require_one_name(answers)
    obstacles = {rank: obstacle for rank, (_, obstacle) in answers.items() if obstacle is not None}
    if name == "mpi" and obstacles:
        reasons = "; ".join(f"rank {rank}: {obstacle}" for rank, obstacle in obstacles.items())
        raise UnsupportedError(f"engine 'mpi' cannot be used ({reasons})")
    if name == "horovod" or obstacles:
        return horovod
    from hvd_compress.engines.mpi import MpiEngine

    return MpiEngine(ranks=ranks)


def choose_arrivals(name: str = "auto", process_set: Any = None) -> Arrivals:
    """Return by what the members of a Horovod process set tell each other who waits. Nothing is communicated.

    MPI's name service where the job was started by mpirun and the engine may be MPI, the launcher's server under
    `horovodrun --gloo`, or nothing. Each rank finds out by itself: where one cannot use MPI, the others name it as
    missing, and nothing else changes.
    """
    import horovod.torch as hvd

    ranks = process_set_ranks(process_set) if process_set is not None else list(range(hvd.size()))
    if name != "horovod" and _obstacle_to_mpi("auto") is None:
        from hvd_compress.engines.mpi_arrivals import MpiArrivals

        return MpiArrivals(ranks)
    url = rendezvous_url()
    return RendezvousArrivals(url, ranks, hvd.rank()) if url is not None else Arrivals()


def _require_one_name(answers: dict[int, tuple[str, str | None]]) -> None:
    asked = {name: [rank for rank in answers if answers[rank][0] == name] for name, _ in answers.values()}
    if len(asked) > 1:
        words = ", ".join(f"{name!r} on ranks {ranks}" for name, ranks in asked.items())
        raise ConfigError(f"all ranks must ask for the same engine, but they asked for {words}")
    (name,) = asked
    if name not in ENGINES:
        raise ConfigError(f"unknown engine {name!r}; known are {', '.join(ENGINES)}")


def _obstacle_to_mpi(name: str) -> str | None:
    """Say why this process cannot use MPI in the place of Horovod, or return None where it can.

    Importing mpi4py starts MPI, which is of no use in a process that was not launched for it; a single process that
    asks for MPI by name may have it all the same.
    """
    import horovod.torch as hvd

    if not launched_by_mpi() and (name == "auto" or hvd.size() > 1):
        return "not launched by mpirun"
    try:
        from hvd_compress.engines.mpi_library import MPI
    except MissingPackageError as error:
        return str(error)
    if MPI.Is_finalized():
        return "MPI has been shut down"
    if (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) != (hvd.rank(), hvd.size()):
        mpi, horovod = (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size), (hvd.rank(), hvd.size())
        return f"MPI counts rank {mpi[0]} of {mpi[1]} where Horovod counts rank {horovod[0]} of {horovod[1]}"
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "MPI was started without MPI_THREAD_MULTIPLE"
    return None
