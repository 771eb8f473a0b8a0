"""Jobs on emulated networks (root): a module of benchmarks is each rank, and rank 0 tells what was found."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from benchmarks.frame.circumstances import circumstances, told
from benchmarks.frame.ranks import rank
from benchmarks.frame.store import BUILD, ROOT, append, lines
from hvd_compress.netlab import Lab

HOSTS = 4


def run(
    module: str,
    wanted: Mapping[str, Any],
    network: str,
    file: Path,
    *,
    hosts: int = HOSTS,
    slots: int = 1,
    keeps_curves: bool = True,
    **more: str,
) -> None:
    """Run a module as a job, whose ranks find `wanted` by asked(), and add what it tells to `file`.

    Args:
        network: bandwidth and latency of all lines, such as "100mbit-5ms".
        keeps_curves: find the curves that an earlier job of this subject measured, so that only one lab of it can run.
        more: variables of the environment.

    Raises:
        click.ClickException: a rank failed.
    """
    words = json.dumps({**wanted, "file": str(file), "circumstances": circumstances()})
    bandwidth, latency = network.split("-")
    environment = {
        "HVD_COMPRESS_TIMEOUT_S": "600",
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HVD_COMPRESS_HOROVOD_NICENESS": "0",  # Horovod's own methods share the process
        "HVD_COMPRESS_CACHE": str(BUILD / "cache" / network),  # curves of another network must not be found
        **more,
    }
    name = module.split(".")[1].replace("_", "-")  # part of its hosts' names, and curves are kept by hosts
    with Lab(hosts, latency, bandwidth, slots, name=name if keeps_curves else f"{name}-{os.getpid()}") as lab:
        status = lab.run([sys.executable, "-m", module, words], env=environment, cwd=ROOT).returncode
    if status != 0:
        raise click.ClickException(f"exit status {status} of {module} {words}")


def found(module: str, wanted: Mapping[str, Any], network: str, **options: Any) -> list[dict[str, Any]]:
    """Run a module as run() does, and return what it tells.

    Prints the circumstances, which are to stand above its table, and adds all to build/SUBJECT/MODULE.jsonl.
    """
    print(f"{told()}\n")
    with TemporaryDirectory() as folder:
        file = Path(folder, "found")
        run(module, wanted, network, file, keeps_curves=False, **options)
        rows = lines(file)
    _, subject, name = module.split(".")
    for row in rows:
        append(BUILD / subject / f"{name}.jsonl", {"network": network, "wanted": wanted, **row})
    return rows


def asked() -> dict[str, Any]:
    """Return what the job of this rank is wanted for."""
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    return wanted


def tell(wanted: Mapping[str, Any], what: Mapping[str, Any]) -> None:
    """Keep what was found, and under which circumstances; by rank 0."""
    if rank() == 0:
        append(Path(wanted["file"]), {**what, "circumstances": wanted["circumstances"]})
