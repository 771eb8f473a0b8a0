"""The doctor's conclusions, from probe results that are given here rather than found on this machine."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from hvd_compress.cli import doctor, findings, probes
from hvd_compress.cli.probes import Result

HEALTHY = {
    "torch": Result({"version": "2.13.0", "cuda": None, "devices": 0}),
    "horovod": Result({"version": "0.28.1", "built": ["MPI", "Gloo"], "not_built": ["NCCL", "CUDA"]}),
    "mpi": Result({"vendor": "Open MPI", "version": "5.0.11", "library": "Open MPI v5.0.11", "threads": "multiple"}),
    "algorithms": Result({"forcible": ["ring", "tree"]}),
    "native": Result({"file": "_native.so", "simd": "avx512"}),
    "namespaces": Result({"kind": "direct", "tun": True}),
}
BROKEN = Result(error="ModuleNotFoundError: No module named '[it]'")


def _doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str, **changed: Result) -> tuple[int, str]:
    monkeypatch.setattr(probes, "run", (HEALTHY | changed).__getitem__)
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


@pytest.mark.parametrize("part", ["mpi", "algorithms", "namespaces"])
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


@pytest.mark.parametrize(("version", "state"), [((3, 9), "missing"), ((3, 10), "ok"), ((3, 13), "ok")])
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
