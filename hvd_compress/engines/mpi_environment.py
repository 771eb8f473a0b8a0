"""What has to stand in the environment before MPI starts."""

from __future__ import annotations

import os

_MIB = str(1 << 20)

_OPEN_MPI = {
    # Lets the allreduce algorithm be chosen at run time. Newer releases (5.0.11 is one) also take it later.
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
    # Our collectives wait in a thread beside the one that trains. Polling without giving way takes its core from it:
    # by default Open MPI gives way only where there are more ranks than cores.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # Over TCP, what is longer than this waits for the receiver to say that it is ready, two latencies in each round of
    # a collective. With 1 MiB instead of 64 KiB a ring of 256 KiB over 4 hosts, 1 ms, 1 Gbit/s takes 12 ms, not 25.
    "OMPI_MCA_btl_tcp_eager_limit": _MIB,
    "OMPI_MCA_btl_tcp_rndv_eager_limit": _MIB,
    "OMPI_MCA_btl_tcp_max_send_size": _MIB,
}

_LAUNCHERS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "MPI_LOCALNRANKS")
"""Set for each process by mpirun of Open MPI, by that of MPICH and its kin, by srun with PMIx, by Intel's."""
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
"""Where mpirun, horovodrun, torchrun and srun say how many ranks there are."""


def prepare() -> None:
    """Set up Open MPI for collectives that run beside the training; values that the user has set stay.

    Must run before MPI_Init, so before `hvd.init()` and before mpi4py is imported. Other MPI libraries ignore it.
    """
    for name, value in _OPEN_MPI.items():
        os.environ.setdefault(name, value)


def launched_by_mpi() -> bool:
    """Whether a launcher of MPI jobs started this process."""
    return any(variable in os.environ for variable in _LAUNCHERS)
