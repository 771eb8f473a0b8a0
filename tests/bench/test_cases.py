"""The kernels that `bench kernels` measures."""

from __future__ import annotations

import inspect

import pytest
import torch

from hvd_compress import native
from hvd_compress.bench.cases import cases, kernel_names

PUBLIC = [
    name
    for name in native.__all__
    if inspect.isfunction(function := getattr(native, name))
    and function.__module__ not in ("hvd_compress.native.module", "hvd_compress.native.faults")
]
"""Functions that compute."""


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_has_a_row(name: str) -> None:
    assert any(row.split("/")[0] == name for row in kernel_names())


@pytest.mark.parametrize("numel", [1, 63, 64, 5000])
def test_all_cases_and_peers_run_on_any_number_of_elements(numel: int) -> None:
    grad, residual = torch.randn(numel), torch.zeros(numel)
    for case in cases(grad, residual, residual.zero_):
        for call in (case.run, case.peer):
            case.prepare()
            call()
