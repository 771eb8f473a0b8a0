"""No kernel without its twin, its tests and its line in the documentation; its row in the benchmark: tests/bench."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from hvd_compress import _native, native
from hvd_compress.native import cuda

ROOT = Path(__file__).parents[2]
PUBLIC = [
    name
    for name in native.__all__
    if inspect.isfunction(function := getattr(native, name))
    and function.__module__ not in ("hvd_compress.native.module", "hvd_compress.native.faults")
]
"""Functions that compute; those of the module `module` ask for threads and levels, of `faults` for what was bad."""


def _declared(device: str) -> set[str]:
    """Functions that the headers declare for a device."""
    names: set[str] = set()
    for header in (ROOT / "csrc/include/hvd_compress").glob("*.hpp"):
        for body in re.findall(rf"namespace {device} {{\n(.*?)\n}}", header.read_text(), re.DOTALL):
            names.update(re.findall(r"^\w+(?:<.*>)? (\w+);$", body, re.MULTILINE))
    return names


CPU_ALONE = {"copy_tokens", "decode_attention", "decode_attention_workspace_bytes"}
"""Kernels without a twin: on a GPU, torch's own attend."""

KERNELS = sorted(name for name in _declared("cpu") if not name.endswith("_workspace_bytes"))


def _tests_at_every_level() -> str:
    """The text of the native tests, but for those that put a fixture in the place of the one that sets the level."""
    texts = [path.read_text() for path in (ROOT / "tests/native").glob("test_*.py")]
    return "\n".join(text for text in texts if "def level() -> None" not in text)


def test_there_are_kernels() -> None:
    assert {"topk_accumulate", "gather", "magnitude_curve"} <= set(KERNELS)
    assert {"topk_accumulate", "gather", "gain_curve"} <= set(PUBLIC)


def test_every_declared_function_is_declared_for_both_devices_and_bound() -> None:
    assert _declared("cpu") > CPU_ALONE
    assert _declared("cpu") - CPU_ALONE == _declared("cuda")
    for name in _declared("cpu"):
        assert hasattr(_native, name), name
        assert name in CPU_ALONE or name in cuda._PARAMETERS or name in cuda._WORKSPACES, name


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_its_own_tests(name: str) -> None:
    for file in ("test_gil.py", "test_bad_input.py"):
        assert re.search(rf"\b_native\.{name}\(", (ROOT / "tests/native" / file).read_text()), file


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_is_tested_compared_and_documented(name: str) -> None:
    assert re.search(rf"\bnative\.{name}\b", _tests_at_every_level()), "no test at every level"
    assert re.search(rf"\bnative\.{name}\b", (ROOT / "tests/native/test_bad_input.py").read_text())
    assert re.search(rf"\bnative\.{name}\b", (ROOT / "benchmarks/gpu/calls.py").read_text()), "no parity on a GPU"
    timed = "".join(path.read_text() for path in (ROOT / "benchmarks/gpu").glob("cases*.py"))
    assert re.search(rf"\bnative\.{name}\b", timed), "not timed on a GPU"
    assert f"`{name}`" in (ROOT / "docs/usage.md").read_text(), "not in docs/usage.md"
