"""`hvd-compress run`: what horovodrun was for. It starts mpirun or torchrun with the right words, and shows them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from hvd_compress.cli.trials import find_mpirun
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.membership.hosts import LOCAL, PASSED_ON, by_script, parsed
from hvd_compress.settings import Settings

OPEN_MPI = "Open MPI"
PORT = 29500


@click.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    help="Start a program on several ranks, as horovodrun does: hvd-compress run -np 4 -H a:2,b:2 python train.py",
)
@click.option("-np", "--num-proc", "ranks", type=click.IntRange(min=1), required=True, help="How many ranks.")
@click.option("-H", "--hosts", "hosts", default="", help="Where: a:2,b:2 is 2 ranks on each host. Here, by default.")
@click.option("--gloo", "--mpi", "--verbose", is_flag=True, hidden=True, help="Of horovodrun; what is there decides.")
@click.option("--min-np", "least", type=click.IntRange(min=1), help="Go on with as few: ranks may come and go.")
@click.option("--max-np", "most", type=click.IntRange(min=1), help="Of those that come, take as many; -np, by default.")
@click.option("--host-discovery-script", "script", help="Prints the hosts there are, a line each, as a:2.")
@click.option("--elastic-timeout", "patience_s", default=600.0, show_default=True, help="How long too few ranks wait.")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    ranks: int,
    hosts: str,
    gloo: bool,
    least: int | None,
    most: int | None,
    script: str | None,
    patience_s: float,
    program: Sequence[str],
) -> None:
    del gloo
    if least is not None or most is not None or script is not None:
        sys.exit(_elastic(ranks, hosts, least or ranks, most or ranks, script, patience_s, program))
    words = launch_line(ranks, parsed(hosts), program, os.environ, by_mpi=_has_mpi())
    click.echo(shlex.join(words), err=True)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    os.execvp(words[0], words)


def _elastic(
    ranks: int, hosts: str, least: int, most: int, script: str | None, patience_s: float, program: Sequence[str]
) -> int:
    from hvd_compress.membership.launcher import Launcher
    from hvd_compress.membership.roster import Roster

    if not least <= ranks <= most:
        raise ConfigError(f"--min-np {least}, -np {ranks} and --max-np {most}: name them in ascending order")
    if script is not None and hosts:
        raise ConfigError("-H and --host-discovery-script name hosts both: leave one out")
    known = parsed(hosts) if hosts else {LOCAL: most}
    late_s = Settings.from_environment().timeout_s
    roster = Roster(ranks, least, most, late_s, patience_s)
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    variables = {"HVD_COMPRESS_RUNTIME": "torch", **os.environ, "PATH": path}
    if variables["HVD_COMPRESS_RUNTIME"] != "torch":
        raise ConfigError(
            f"HVD_COMPRESS_RUNTIME={variables['HVD_COMPRESS_RUNTIME']}, whose ranks do not come and go: leave it out"
        )
    find = by_script(script) if script is not None else lambda: known
    return Launcher(program, find, roster, most, variables).run()


def launch_line(
    ranks: int, hosts: Mapping[str, int], program: Sequence[str], environment: Mapping[str, str], by_mpi: bool
) -> list[str]:
    """Return the command that starts a program on that many ranks.

    Args:
        by_mpi: whether Open MPI can start them, and they can meet over it; else torchrun does.

    Raises:
        ConfigError: the hosts have not as many ranks.
        UnsupportedError: torchrun, which must be started on each host by itself. The message has the commands.
    """
    if hosts and sum(hosts.values()) < ranks:
        raise ConfigError(
            f"-np {ranks} needs {ranks} slots, and -H names {sum(hosts.values())}: name more, or lower -np"
        )
    if not by_mpi:
        return _by_torchrun(ranks, hosts, program)
    words = ["mpirun", "-np", str(ranks), "--bind-to", "none", "--map-by", "slot" if hosts else ":OVERSUBSCRIBE"]
    words += [] if hosts else ["-H", f"localhost:{ranks}"]  # else the hosts of an allocation
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []  # as horovodrun
    if hosts:
        names = sorted(name for name in environment if name.startswith(PASSED_ON))
        words += ["-H", ",".join(f"{host}:{count}" for host, count in hosts.items())]
        words += [word for name in names for word in ("-x", name)]
    return [*words, *program]


def _by_torchrun(ranks: int, hosts: Mapping[str, int], program: Sequence[str]) -> list[str]:
    if not hosts or list(hosts) == ["localhost"]:
        return ["torchrun", "--standalone", "--nproc-per-node", str(ranks), "--no-python", *program]
    if len(set(hosts.values())) > 1 or sum(hosts.values()) != ranks:
        raise UnsupportedError(
            f"torchrun starts as many ranks on each host, and -H names {list(hosts.values())} of -np {ranks}: give "
            "them equal numbers, or install Open MPI and mpi4py"
        )
    first = next(iter(hosts))
    alike = ["--master-addr", first, "--master-port", str(PORT), "--no-python", *program]
    lines = [
        f"torchrun --nnodes {len(hosts)} --node-rank {number} --nproc-per-node {count} {shlex.join(alike)}"
        for number, count in enumerate(hosts.values())
    ]
    each = "\n".join(f"  on {host}: {line}" for host, line in zip(hosts, lines, strict=True))
    raise UnsupportedError(
        f"without Open MPI and mpi4py nothing here starts ranks on other hosts. Start them on each by itself:\n{each}"
    )


def _has_mpi() -> bool:
    """Whether mpirun is Open MPI's, and ranks can meet over it."""
    mpirun = find_mpirun()
    if mpirun is None or find_spec("mpi4py") is None:
        return False
    return OPEN_MPI in subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout
