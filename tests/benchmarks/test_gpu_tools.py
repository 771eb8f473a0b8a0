"""What the check of the CUDA kernels starts: builds, tools of compute-sanitizer and trainings, with stand-ins for what
is not here."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks.gpu import building, check, commands, cub, sanitizers, two_ranks
from benchmarks.gpu.scales import SCALES

CPU = torch.device("cpu")
TINY = ("--device=cpu", "--scale=tiny")

SANITIZER = """\
#!{python}
import os, subprocess, sys, time
if "--help" in sys.argv:
    sys.exit(print("  --kernel-regex arg"))
print("options", *sys.argv[1:sys.argv.index("--error-exitcode")], flush=True)
for line in os.environ.get("SAID", "").split(";"):
    print("=========", line, flush=True)
if "REFUSES" in os.environ:
    sys.exit(1)
time.sleep(float(os.environ.get("SLEEPS", 0)))
status = subprocess.run(sys.argv[sys.argv.index("--error-exitcode") + 2:]).returncode
sys.exit(int(os.environ.get("STATUS", status)))
"""


@pytest.fixture
def sanitize(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Return what runs tiny inputs under a program that stands for compute-sanitizer."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(SANITIZER.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said: list[str] = []

    def run(tool: str = "memcheck", limit_s: float = 60.0, **environment: str) -> str:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        outcome: str = sanitizers.sanitize(tool, limit_s, said.append, TINY)
        return f"{outcome} / {said[0].strip()}"

    return run


def test_a_clean_tool(sanitize: Callable[..., str]) -> None:
    assert sanitize(SAID="ERROR SUMMARY: 0 errors;RACECHECK SUMMARY: 0 hazards displayed") == (
        "clean, 16 of 16 items / options --tool memcheck --kernel-regex kns=hvd_compress --report-api-errors no"
    )


def test_initcheck_sees_who_else_writes(sanitize: Callable[..., str]) -> None:
    assert sanitize("initcheck").endswith("options --tool initcheck")


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        (
            {"SAID": "Invalid __global__ read of size 4 bytes", "STATUS": "9"},
            "FaultsError",
            "Invalid __global__ .* 16 of 16",
        ),
        ({"SAID": "Error: Race reported between Write", "STATUS": "0"}, "FaultsError", "Race reported between Write"),
        ({"STATUS": "9"}, "FaultsError", "exit status 9"),
        ({"STATUS": "1"}, "FaultsError", "exit status 1"),
        ({"SAID": "Device not supported", "REFUSES": "1"}, "LeftOutError", "refused: =* Device not supported"),
        ({"SLEEPS": "60"}, "LeftOutError", "no end within 1 s; 0 of 0 items run without a fault"),
        ({"SLEEPS": "60", "SAID": "Barrier error detected."}, "FaultsError", "Barrier error detected"),
    ],
)
def test_what_a_tool_tells(sanitize: Callable[..., str], environment: dict[str, str], error: str, message: str) -> None:
    kind = getattr(sanitizers, error)
    with pytest.raises(kind, match=message):
        sanitize(limit_s=1.0 if "SLEEPS" in environment else 60.0, **environment)


def test_each_tool_is_told_of_whatever_becomes_of_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, float]] = []

    def sanitize(tool: str, limit_s: float, say: Callable[[str], object]) -> str:
        calls.append((tool, limit_s))
        say(f"{tool} ran\n")
        if tool == "memcheck":
            raise sanitizers.LeftOutError("refused")
        if tool == "racecheck":
            raise sanitizers.FaultsError("Race reported")
        if tool == "synccheck":
            raise OSError("no memory")
        return "clean"

    monkeypatch.setattr(check, "sanitize", sanitize)
    monkeypatch.setattr(check, "_begin", lambda device: None)
    monkeypatch.setattr(check, "is_built", lambda: True)
    monkeypatch.setattr(check, "facts", lambda device, scale: {
        "card": "H200", "torch": "2", "cuda": "13", "scale": scale, "command": "check",
    })  # fmt: skip
    result = CliRunner().invoke(check.main, ["sanitizers", f"--out={tmp_path}", "--each-s=7"])
    assert result.exit_code == 1, result.output
    assert calls == [(tool, 7.0) for tool in ("memcheck", "racecheck", "synccheck", "initcheck")]
    items = json.loads((tmp_path / "report.json").read_text())["parts"]["sanitizers"]["items"]
    assert [sorted(set(item) - {"seconds"}) for item in items.values()] == [
        ["left_out"], ["failure"], ["failure"], ["value"]
    ]  # fmt: skip
    assert "racecheck ran" in (tmp_path / "log.txt").read_text()
    assert "FAILED: sanitizers, synccheck: OSError: no memory" in result.output
    result = CliRunner().invoke(check.main, ["sanitizers", f"--out={tmp_path}", "--tool=initcheck"])
    assert result.exit_code == 0, result.output


def test_the_build_is_for_this_gpu_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The package without its CUDA kernels, which it would take minutes longer for, and these beside it."""
    commands: list[tuple[list[str], dict[str, str]]] = []

    def require(words: list[str], environment: dict[str, str]) -> None:
        commands.append((words[1:], environment))
        if words[1] == "tools/build_cuda.py":
            Path(words[2]).write_text("library")

    (tmp_path / "hvd_compress").mkdir()
    monkeypatch.setattr(building, "require", require)
    monkeypatch.setattr(building, "ROOT", tmp_path)
    monkeypatch.setattr(building, "architecture_of", lambda device: "90")
    items = building.items(torch.device("cuda"), tmp_path, tmp_path / "cccl")
    items["kernels of the CPU"]()
    items["kernels of the GPU"]()
    with pytest.raises(cub.LeftOutError, match=r"cccl holds no CCCL of 3\.2 or later"):
        items["cub::DeviceTopK"]()
    assert sorted(commands) == [
        (["setup.py", "--quiet", "build_ext", "--inplace"], {"HVD_COMPRESS_CUDA": "0"}),
        (["tools/build_cuda.py", str(tmp_path / "libhvd_compress_cuda.so")], {"HVD_COMPRESS_CUDA_ARCH": "90"}),
    ]
    assert (tmp_path / "hvd_compress" / "libhvd_compress_cuda.so").read_text() == "library"


def test_sanitizers_build_where_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts: list[str] = []
    package = tmp_path / "hvd_compress"
    package.mkdir()
    monkeypatch.setattr(building, "ROOT", tmp_path)
    assert not building.is_built()
    for name in (building.LIBRARY, f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"):
        assert not building.is_built()
        (package / name).write_text("")
    assert building.is_built()
    (package / building.LIBRARY).unlink()
    facts = {"card": "H200", "torch": "2", "cuda": "13", "scale": "full", "command": "check"}
    monkeypatch.setattr(check.Runner, "run", lambda self, name: parts.append(name))
    monkeypatch.setattr(check, "_begin", lambda device: None)
    monkeypatch.setattr(check, "facts", lambda device, scale: facts)
    monkeypatch.setattr(check, "sanitize", lambda *arguments: "clean")
    assert CliRunner().invoke(check.main, ["sanitizers", f"--out={tmp_path}"]).exit_code == 0
    assert parts == ["build"]


def test_a_build_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:

    def require(words: list[str], environment: dict[str, str]) -> None:
        if words[1] == "setup.py":
            raise commands.CommandError("python: exit status 1: no cmake")
        Path(words[2]).write_text("library")

    (tmp_path / "hvd_compress").mkdir()
    monkeypatch.setattr(building, "require", require)
    monkeypatch.setattr(building, "ROOT", tmp_path)
    monkeypatch.setattr(building, "architecture_of", lambda device: "90")
    items = building.items(torch.device("cuda"), tmp_path, tmp_path / "cccl")
    with pytest.raises(commands.CommandError, match="no cmake"):
        items["kernels of the CPU"]()
    items["kernels of the GPU"]()


def test_cub_is_compiled_with_the_headers_that_are_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[list[str]] = []
    header = tmp_path / "cccl" / cub.HEADER
    header.parent.mkdir(parents=True)
    header.write_text("")
    monkeypatch.setattr(cub, "require", ran.append)
    cub.build(tmp_path / "cccl", "90", tmp_path / "built" / "cub_topk.so")
    ((nvcc, *words),) = ran
    assert nvcc == "nvcc"
    assert {"-arch=sm_90", str(tmp_path / "cccl"), str(tmp_path / "built" / "cub_topk.so")} <= set(words)
    assert (tmp_path / "built").is_dir()


def test_without_mpirun_it_still_trains_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(words: list[str]) -> Any:
        ran.append(words)
        report = next(word.split("=")[1] for word in words if word.startswith("--json="))
        Path(report).write_text(json.dumps({"gloo": {"equal": 3, "different": ["a", "b"][: len(ran) - 1]}}))
        return commands.Ended(len(ran) - 1, "")

    monkeypatch.setattr(two_ranks.shutil, "which", lambda *arguments, **options: None)
    monkeypatch.setattr(two_ranks, "run", run)
    items = two_ranks.items(torch.device("cuda"), SCALES["full"], 90.0)
    assert items["over gloo"]() == {"equal": 3, "different": []}
    assert {"--device=cuda", "--transport=gloo", "--limit-s=90.0"} <= set(ran[0])
    with pytest.raises(two_ranks.FaultyError, match="1 results are not the CPU's: a"):
        items["over gloo"]()
    for name in ("over mpi", "the example"):
        with pytest.raises(two_ranks.LeftOutError, match="no mpirun on PATH"):
            items[name]()


def test_a_machine_without_a_package_leaves_the_training_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_ranks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(two_ranks.LeftOutError, match="no package pydantic"):
        two_ranks.items(CPU, SCALES["tiny"], 90.0)["over gloo"]()
