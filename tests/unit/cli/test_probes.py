"""Probes run in processes of their own: whatever happens there, the doctor gets a result."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from hvd_compress.cli import probes, trials
from tests.installed import install
from tests.unit.front.ddp.job import run_ranks

pytestmark = pytest.mark.level2

LIMIT_S = 600.0
"""Only what hangs takes so long."""


def _run_instead(monkeypatch: pytest.MonkeyPatch, program: str, timeout_s: float = LIMIT_S) -> probes.Result:
    _patch_popen(monkeypatch, program)
    return probes.run("torch", timeout_s)


def _patch_popen(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    original = subprocess.Popen

    def popen(_: object, **options: object) -> subprocess.Popen[str]:
        return original([sys.executable, "-c", program], **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(probes.subprocess, "Popen", popen)


def test_values_are_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, """print("a library says hello"); print('{"version": "1"}')""")
    assert result == probes.Result({"version": "1"})


def test_an_exception_becomes_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, "raise ImportError('libmpi.so.40: cannot open')")
    assert result == probes.Result(error="ImportError: libmpi.so.40: cannot open")


def test_a_crash_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_instead(monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert result == probes.Result(error="crashed with SIGSEGV")


def test_a_hang_ends_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    # The child holds the pipes open: only killing the whole group lets the probe end.
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    result = _run_instead(monkeypatch, program, timeout_s=0.5)
    assert "no answer" in result.error


FORKED = """
import os, signal, subprocess, sys, time
sys.modules["torch"] = None  # not needed
from hvd_compress.cli import probes

def hang():
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])

def noisy():
    os.system("echo a library says hello")
    return {"version": "1"}

probes.TIMEOUT_S = 2.0
probes.PROBES.update(
    hangs=hang,
    crashes=lambda: os.kill(os.getpid(), signal.SIGSEGV),
    fails=lambda: 1 // 0,
    noisy=noisy,
)
probes.fork_each(["crashes", "fails", "noisy", "hangs"])
"""


def test_forked_probes_crash_fail_and_hang_by_themselves() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=LIMIT_S)
    told = dict(map(json.loads, done.stdout.splitlines()))
    assert told == {
        "crashes": {"values": {}, "error": "crashed with SIGSEGV"},
        "fails": {"values": {}, "error": "ZeroDivisionError: integer division or modulo by zero"},
        "noisy": {"values": {"version": "1"}, "error": ""},
        "hangs": {"values": {}, "error": "no answer within 2 s"},
    }


def test_a_process_that_crashes_before_it_forks_is_named_for_all_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where torch is imported."""
    line = json.dumps(["first", {"values": {"x": 1}, "error": ""}])
    program = f"import os, signal; print({line!r}, flush=True); os.kill(os.getpid(), signal.SIGSEGV)"
    _patch_popen(monkeypatch, program)
    crashed = probes.Result(error="crashed with SIGSEGV")
    assert probes._run_forked(["first", "second"]) == {"first": probes.Result({"x": 1}), "second": crashed}


@pytest.mark.parametrize("cores", [1, 3, 100])
def test_every_probe_is_run_once(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    monkeypatch.setattr(probes, "_run_forked", lambda names: ran.extend(names) or dict.fromkeys(names, probes.Result()))
    monkeypatch.setattr(probes, "run", lambda name: ran.append(name) or probes.Result())
    assert probes.run_all().keys() == probes.PROBES.keys()
    assert sorted(ran) == sorted(probes.PROBES)


def test_native_probe_computes() -> None:
    assert probes.run("native", LIMIT_S).values["file"].endswith(".so")


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_step_of_two_ranks(name: str) -> None:
    assert probes.run(name, LIMIT_S) == probes.Result()


def test_gloo_that_finds_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    assert "nowhere0" in probes.run("ddp", LIMIT_S).error


def test_a_step_of_horovod() -> None:
    assert {"MPI", "Gloo"} & set(probes.run("horovod", LIMIT_S).values["built"])


@pytest.mark.parametrize(("probe", "package"), [("horovod", "horovod"), ("mpi", "mpi4py")])
def test_a_package_that_is_missing_and_one_that_is_broken(
    probe: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of the one that is installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / package / "__init__.py"
    module.parent.mkdir()
    module.write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\", name='{package}')\n")
    assert probes.run(probe, LIMIT_S).lacks(package)
    module.write_text("import ctypes\nctypes.CDLL('libnowhere.so.1')\n")
    broken = probes.run(probe, LIMIT_S)
    assert "libnowhere.so.1: cannot open shared object file" in broken.error
    assert not broken.lacks(package)


def test_a_library_and_the_module_for_it() -> None:
    assert trials.library("pytest", "hvd_compress.units") == {"version": pytest.__version__}
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_library'"):
        trials.library("no_such_library", "hvd_compress.units")


def test_the_package_is_examined_that_the_command_runs_from(tmp_path: Path) -> None:
    """A console script has its own folder first on sys.path, so sources in the current folder are not imported."""
    installed = install(tmp_path)
    script = installed.python.parent / "hvd-compress"
    script.write_text("from hvd_compress.cli import probes\nprint(probes.run('native'))\n")
    printed = installed.run(script)
    assert "error=''" in printed
    assert f"'file': '{installed.package}/_native" in printed


def test_sources_that_shadow_the_installed_package_are_named(tmp_path: Path) -> None:
    """Unlike a console script, python -c imports from the current folder."""
    installed = install(tmp_path)
    printed = installed.run("-c", "from hvd_compress.cli import probes; print(probes.run('native').error)")
    assert (
        f"{installed.checkout}, where they were not built, shadows the installed package {installed.package}" in printed
    )


@pytest.fixture
def root_may(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")


@pytest.mark.usefixtures("root_may")
def test_more_ranks_than_slots_need_the_two_options() -> None:
    slots, mpirun = probes.run("slots").values["slots"], probes.find_mpirun()
    more = [mpirun, "-np", str(slots + 1)]
    stopped = subprocess.run([*more, "true"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert stopped.returncode != 0
    assert "not enough slots" in stopped.stdout + stopped.stderr
    subprocess.run([*more, "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", "true"], timeout=LIMIT_S, check=True)
    within = [mpirun, "-np", str(slots), "true"]
    subprocess.run(within, timeout=LIMIT_S, check=True)


def test_slots_are_those_of_a_hostfile_that_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI reads hostfiles only where it finds ssh, which a bare Debian lacks; for its own host it runs none."""
    (tmp_path / "ssh").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "hosts").write_text(f"{socket.gethostname()} slots=7\n")
    monkeypatch.setenv("PRTE_MCA_prte_default_hostfile", str(tmp_path / "hosts"))
    assert probes.run("slots").values == {"slots": 7, "hosts": 1}


def test_an_mpirun_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho ------\necho no such option\nexit 3\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "mpirun ended with 3, and said: no such option" in probes.run("slots").error


def test_localhost_is_looked_up() -> None:
    """On a machine where it has no address, such as a bare container, the error says so."""
    found = probes.run("localhost", LIMIT_S)
    try:
        expected = socket.gethostbyname("localhost")
    except OSError as error:
        expected = str(error)
    assert expected in (found.values.get("address", ""), found.error.partition("gaierror: ")[2])


def test_an_error_of_the_other_rank_alone_is_one() -> None:
    run_ranks(fail_on_the_other_rank, ranks=1)


def fail_on_the_other_rank(_: int) -> None:
    dist.destroy_process_group()  # the trial makes one of its own

    def step() -> None:
        assert dist.get_rank() == 0

    with pytest.raises(RuntimeError, match="the other rank ended with 1"):
        trials._on_two_ranks(step)
