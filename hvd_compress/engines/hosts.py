"""Which machine a process runs on, and on which of its cores."""

from __future__ import annotations

import os
import socket
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

_LIMIT = Path("/sys/fs/cgroup/cpu.max")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host_identity() -> str:
    """Return a text that processes share where they run on one host, and only there.

    Machines that were installed from one image may share a name, so the number of the kernel's boot is added where
    there is one. Containers with names of their own, and the hosts of an emulated network, count as hosts.
    """
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may run on; nothing where the system does not tell.

    Of a container with a limit on processor time (cgroup v2) as many as that pays for.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    try:
        quota, period = _LIMIT.read_text().split()
    except OSError:
        return cores
    return cores if quota == "max" else cores[: max(1, int(quota) // int(period))]


def share_cores(names: Sequence[object], cores: Sequence[Sequence[int]]) -> bool:
    """Return whether on some host more ranks run than there are cores for them, by rank its host and its cores."""
    ranks = Counter(names)
    of_host: defaultdict[object, set[int]] = defaultdict(set)
    for name, own in zip(names, cores, strict=True):
        of_host[name].update(own)
    return any(0 < len(found) < ranks[name] for name, found in of_host.items())


def numbered(names: Sequence[object]) -> tuple[int, ...]:
    """Return for each name a number from 0, equal for equal names, in the order in which they first appear."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)
