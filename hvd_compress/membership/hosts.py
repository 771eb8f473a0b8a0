"""Which hosts a job has, and what processes on others get of this one's environment."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping

import click

from hvd_compress.errors import ConfigError

LOCAL = "localhost"
_SCRIPT_S = 30.0
PASSED_ON = ("HOROVOD_", "HVD_COMPRESS_", "NCCL_", "GLOO_", "OMP_", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""How the names of variables begin that ranks of other hosts get, too."""


def by_script(script: str) -> Callable[[], Mapping[str, int]]:
    """Return what asks a script for hosts, as Horovod does: a line each, as a:2, or a for one process."""
    known: dict[str, int] = {}

    def discover() -> Mapping[str, int]:
        nonlocal known
        try:
            words = shlex.split(script)
            done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_SCRIPT_S)
            known = parsed(",".join(done.stdout.split()))
        except (OSError, subprocess.SubprocessError, ConfigError) as error:
            if not known:
                raise ConfigError(f"--host-discovery-script {script} has failed: {error}") from error
            click.echo(f"hvd-compress: {script} has failed, so hosts stay: {error}", err=True)
        return known

    return discover


def parsed(hosts: str) -> dict[str, int]:
    """Return the ranks of each host of "a:2,b:2"; a host without a number has one.

    Raises ConfigError for anything else.
    """
    found: dict[str, int] = {}
    for word in filter(None, hosts.split(",")):
        name, _, count = word.rpartition(":") if ":" in word else (word, "", "1")
        if not name or not count.isdecimal() or not int(count) or name in found:
            raise ConfigError(f"{hosts} is no list of hosts such as a:2,b:2: {word!r}")
        found[name] = int(count)
    return found
