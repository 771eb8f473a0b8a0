"""What `hvd-compress run` starts; and that it does."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_compress.cli import run
from hvd_compress.errors import ConfigError, UnsupportedError

PROGRAM = ["python", "train.py", "-v"]
TRAIN = """
import torch
import hvd_compress.torch as hvd
hvd.init()
total = hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: {total.item():g}\\n", end="", flush=True)  # as one, also unbuffered
"""


def test_hosts() -> None:
    assert run.parsed("") == {}
    assert run.parsed("a:2,b") == {"a": 2, "b": 1}
    for wrong in ("a:2,a:2", "a:", ":2", "a:0", "a:x"):
        with pytest.raises(ConfigError, match="no list of hosts"):
            run.parsed(wrong)


def test_mpirun_here_and_on_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "--allow-run-as-root" in run.launch_line(3, {}, PROGRAM, {}, by_mpi=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    here = run.launch_line(3, {}, PROGRAM, {}, by_mpi=True)
    assert shlex.join(here) == "mpirun -np 3 --bind-to none --map-by :OVERSUBSCRIBE -H localhost:3 python train.py -v"
    environment = {"HVD_COMPRESS_LOG": "log", "HOME": "/root", "PATH": "/bin"}
    there = run.launch_line(4, {"a": 2, "b": 2}, PROGRAM, environment, by_mpi=True)
    words = "-np 4 --bind-to none --map-by slot -H a:2,b:2 -x HVD_COMPRESS_LOG -x PATH python train.py -v"
    assert shlex.join(there) == f"mpirun {words}"
    with pytest.raises(ConfigError, match="needs 4 slots, and -H names 2"):
        run.launch_line(4, {"a": 2}, PROGRAM, {}, by_mpi=True)


def test_torchrun_where_there_is_no_mpi() -> None:
    here = run.launch_line(2, {}, PROGRAM, {}, by_mpi=False)
    assert shlex.join(here) == "torchrun --standalone --nproc-per-node 2 --no-python python train.py -v"
    with pytest.raises(UnsupportedError) as caught:
        run.launch_line(4, {"a": 2, "b": 2}, PROGRAM, {}, by_mpi=False)
    lines = re.findall(r"on (\w): torchrun --nnodes 2 --node-rank (\d) .*--master-addr a ", str(caught.value))
    assert lines == [("a", "0"), ("b", "1")]
    with pytest.raises(UnsupportedError, match="equal numbers"):
        run.launch_line(3, {"a": 1, "b": 2}, PROGRAM, {}, by_mpi=False)


@pytest.mark.level2
@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_ranks_meet(launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the words that it prints; without mpirun on PATH, by torchrun."""
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.setenv("HVD_COMPRESS_RUNTIME", "torch")
    if launcher == "torchrun":
        (tmp_path / "mpirun").write_text("#!/bin/sh\necho another MPI\n")
        (tmp_path / "mpirun").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")
    command = [Path(sys.executable).with_name("hvd-compress"), "run", "-np", "2", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(launcher)
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2: 3", "rank 1 of 2: 3"]


ELASTIC = [
    ((2, "", 3, 4, None), None, "--min-np 3, -np 2 and --max-np 4: name them in ascending order"),
    ((2, "a:2", 1, 4, "./hosts"), None, "name hosts both: leave one out"),
    ((2, "", 1, 4, None), "horovod", "HVD_COMPRESS_RUNTIME=horovod, whose ranks do not come and go: leave it out"),
]


@pytest.mark.parametrize(("given", "runtime", "message"), ELASTIC)
def test_what_ranks_that_come_and_go_cannot_do(
    monkeypatch: pytest.MonkeyPatch, given: tuple[int, str, int, int, str | None], runtime: str | None, message: str
) -> None:
    monkeypatch.delenv("HVD_COMPRESS_RUNTIME", raising=False)
    if runtime is not None:
        monkeypatch.setenv("HVD_COMPRESS_RUNTIME", runtime)
    with pytest.raises(ConfigError, match=message):
        run._elastic(*given, 60.0, PROGRAM)
