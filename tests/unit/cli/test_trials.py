"""Trials run in processes of their own: whatever happens there, the doctor gets a result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from hvd_compress.cli import trials
from tests.installed import install
from tests.unit.frontends.ddp.job import run_ranks

pytestmark = pytest.mark.level2

LIMIT_S = 600.0
"""Only what hangs takes so long."""
Instead = Callable[[str, str], tuple[trials.Result, trials.Result]]


def _run_instead(monkeypatch: pytest.MonkeyPatch, program: str, limit_s: float = LIMIT_S) -> trials.Result:
    monkeypatch.setattr(trials, "_PROGRAM", program)
    return trials.run("torch", limit_s)


def test_values_are_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, """print("a library says hello"); print('{"version": "1"}')""")
    assert result == trials.Result({"version": "1"})


def test_an_exception_becomes_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, "raise ImportError('libmpi.so.40: cannot open')")
    assert result == trials.Result(error="ImportError: libmpi.so.40: cannot open")


def test_a_crash_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert result == trials.Result(error="crashed with SIGSEGV")


def test_a_hang_ends_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    # The child holds the pipes open: only killing the whole group lets the trial end.
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    result = _run_instead(monkeypatch, program, limit_s=0.5)
    assert "no answer" in result.error


def test_every_trial_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(trials, "run", lambda name: ran.append(name) or trials.Result({"tried": name}))
    assert trials.run_all() == {name: trials.Result({"tried": name}) for name in trials.TRIALS}
    assert sorted(ran) == sorted(trials.TRIALS)


def test_native_kernels_compute() -> None:
    assert trials.run("native", LIMIT_S).values["file"].endswith(".so")


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_step_of_two_ranks(name: str) -> None:
    assert trials.run(name, LIMIT_S) == trials.Result(trials.TWO_RANKS)


def test_gloo_that_finds_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert "nowhere0" in trials.run("ddp", LIMIT_S).error


@pytest.mark.parametrize(("name", "words"), [("horovod", "a step of one rank"), ("mpi", "launcher ")])
def test_one_rank(name: str, words: str) -> None:
    assert words in trials.run(name, LIMIT_S).values["tried"]


NOWHERE = "libnowhere.so.1: cannot open shared object file"


@pytest.fixture
def instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instead:
    """Return what a trial finds where a package is missing, and where it is broken."""

    def found(package: str, trial: str) -> tuple[trials.Result, trials.Result]:
        monkeypatch.syspath_prepend(str(tmp_path))
        module = tmp_path / package / "__init__.py"
        module.parent.mkdir()
        module.write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')\n")
        missing = trials.run(trial, LIMIT_S)
        module.write_text("import ctypes\nctypes.CDLL('libnowhere.so.1')\n")
        return missing, trials.run(trial, LIMIT_S)

    return found


def test_an_mpi4py_that_is_missing_and_one_that_is_broken(instead: Instead) -> None:
    missing, broken = instead("mpi4py", "mpi")
    assert missing.lacks("mpi4py")
    assert NOWHERE in broken.error
    assert not broken.lacks("mpi4py")


def test_a_horovod_that_is_missing_and_one_that_is_broken(instead: Instead) -> None:
    missing, broken = instead("horovod", "horovod")
    assert missing.values["tried"] == "a step of one rank on a runtime of this package: Horovod is not installed"
    assert f"Horovod is installed, and does not work: {NOWHERE}" in broken.values["tried"]


def test_a_library_and_the_module_for_it() -> None:
    assert trials.library("pytest", "hvd_compress.units") == {"tried": f"pytest {pytest.__version__} imports"}
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_library'"):
        trials.library("no_such_library", "hvd_compress.units")


def test_what_is_there_and_cannot_train(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mpi_built", "gloo_built"):
        monkeypatch.setattr(f"hvd_compress.torch.{name}", lambda: 0)
    with pytest.raises(SystemExit, match="built with neither MPI nor Gloo"):
        trials.horovod()
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=None))
    monkeypatch.setattr(trials.shutil, "which", lambda name, path=None: None)
    with pytest.raises(SystemExit, match="mpirun is not on PATH"):
        trials.mpi()
    monkeypatch.setattr(trials, "DRIVERS", ())
    with pytest.raises(SystemExit, match="no GPU"):
        trials.nccl()


def test_the_package_is_examined_that_the_command_runs_from(tmp_path: Path) -> None:
    """A console script has its own folder first on sys.path, so sources in the current folder are not imported."""
    installed = install(tmp_path)
    script = installed.python.parent / "hvd-compress"
    script.write_text("from hvd_compress.cli import trials\nprint(trials.run('native'))\n")
    printed = installed.run(script)
    assert "error=''" in printed
    assert f"'file': '{installed.package}/_native" in printed


def test_sources_that_shadow_the_installed_package_are_named(tmp_path: Path) -> None:
    """Unlike a console script, python -c imports from the current folder."""
    installed = install(tmp_path)
    printed = installed.run("-c", "from hvd_compress.cli import trials; print(trials.run('native').error)")
    assert (
        f"{installed.checkout}, where they were not built, shadows the installed package {installed.package}" in printed
    )


def test_an_error_of_the_other_rank_alone_is_one() -> None:
    run_ranks(fail_on_the_other_rank, ranks=1)


def fail_on_the_other_rank(_: int) -> None:
    dist.destroy_process_group()  # the trial makes one of its own

    def step() -> None:
        assert dist.get_rank() == 0

    with pytest.raises(RuntimeError, match="the other rank ended with 1"):
        trials._on_two_ranks(step)
