"""For which GPUs the CUDA kernels are built; nothing is compiled here."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

KNOWN = "compute_75\ncompute_80\ncompute_86\ncompute_90\ncompute_100\ncompute_103\ncompute_120\n"


@pytest.fixture
def build_cuda(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "tools"))
    monkeypatch.delenv("HVD_COMPRESS_CUDA_ARCH", raising=False)
    return importlib.import_module("build_cuda")


def codes(flags: list[str]) -> list[str]:
    assert set(flags[::2]) == {"-gencode"}
    return [flag.split("code=")[1] for flag in flags[1::2]]


def test_all_that_nvcc_knows(build_cuda: ModuleType) -> None:
    assert codes(build_cuda._targets(KNOWN)) == ["sm_80", "sm_90", "sm_100", "compute_100"]
    assert codes(build_cuda._targets("compute_80\ncompute_90")) == ["sm_80", "sm_90", "compute_90"]
    assert codes(build_cuda._targets("compute_80\ncompute_103")) == ["sm_80", "compute_80"]  # 103 is not 10


@pytest.mark.parametrize(
    ("asked", "found"),
    [("90", ["sm_90", "compute_90"]), (" 90, 86,90", ["sm_86", "sm_90", "compute_90"]), ("", None), (" , ", None)],
)
def test_those_that_are_asked_for(
    build_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch, asked: str, found: list[str] | None
) -> None:
    every = codes(build_cuda._targets(KNOWN))
    monkeypatch.setenv("HVD_COMPRESS_CUDA_ARCH", asked)
    assert codes(build_cuda._targets(KNOWN)) == (found or every)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("sm_90", "HVD_COMPRESS_CUDA_ARCH: 'sm_90' is no architecture, such as 90"),
        ("90,70", "does not know the architecture 70 of HVD_COMPRESS_CUDA_ARCH; unset it"),
        ("10", "does not know the architecture 10 of"),
    ],
)
def test_one_that_cannot_be(build_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch, asked: str, message: str) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CUDA_ARCH", asked)
    with pytest.raises(build_cuda.BuildError, match=message):
        build_cuda._targets(KNOWN)


def test_none_of_ours(build_cuda: ModuleType) -> None:
    with pytest.raises(build_cuda.BuildError, match="knows none of the architectures"):
        build_cuda._targets("compute_50\n")


def test_what_is_kept_is_that_of_these_architectures(build_cuda: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    every = build_cuda._key("nvcc 13", build_cuda._targets(KNOWN))
    monkeypatch.setenv("HVD_COMPRESS_CUDA_ARCH", "90")
    assert build_cuda._key("nvcc 13", build_cuda._targets(KNOWN)) != every
