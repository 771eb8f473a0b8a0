"""Which machine a process runs on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

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


def numbered(names: Sequence[object]) -> tuple[int, ...]:
    """Return for each name a number from 0, equal for equal names, in the order in which they first appear."""
    numbers: dict[object, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)
