"""The lines of the check that call CUDA, with stand-ins for it: whether their arguments and order are right."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.gpu import building, check, cub, graphs, timings
from benchmarks.gpu import calls as kernels
from hvd_compress.native import cuda

GPU = torch.device("cuda", 0)
CUB = """\
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

extern "C" int cub_topk(const float* x, long long n, int k, int* indices, float* magnitudes, void* workspace,
                        std::size_t* bytes, void* stream) {
    if (workspace == nullptr) return *bytes = 8, 0;
    if (stream != reinterpret_cast<void*>(7)) return 1;
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [x](int a, int b) { return std::fabs(x[a]) > std::fabs(x[b]); });
    for (int i = 0; i < k; ++i) indices[i] = order[i], magnitudes[i] = SCALE * std::fabs(x[order[i]]);
    return 0;
}
"""


@pytest.mark.parametrize("scale", [1, 2])
def test_cub_is_called_as_its_source_declares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scale: int) -> None:
    """A library with the same interface, built for the CPU."""
    declared = "".join(cub.SOURCE.read_text().split("cub_topk(")[1].split(")")[0].split())
    assert (
        declared == "constfloat*x,longlongn,intk,int*indices,float*magnitudes,void*workspace,size_t*bytes,void*stream"
    )
    source, library = tmp_path / "cub.cpp", tmp_path / "cub.so"
    source.write_text(CUB)
    words = ["c++", f"-DSCALE={scale}", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(words, check=True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    topk = cub.CubTopk(library)
    if scale == 1:
        topk.on(torch.randn(100), 7)()
        return
    with pytest.raises(ValueError, match="finds other magnitudes"):
        topk.on(torch.randn(100), 7)


def test_a_gpu_is_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("synchronize")

        def elapsed_time(self, end: Any) -> float:
            return 3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append("sleep"))
    monkeypatch.setattr(timings, "WARM_UP_S", 0.0)
    assert timings.median_s(lambda i: calls.append(f"run {i}"), GPU, 1) == 0.003
    assert calls[:5] == ["sleep", "record", "run 0", "record", "synchronize"]
    turns = [*range(timings.WARM_UP), 0]
    assert [call for call in calls if call.startswith("run")] == [f"run {i % 2}" for i in turns]


def test_the_first_call_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    stream = SimpleNamespace(wait_stream=lambda other: calls.append("wait"))

    class Graph:
        def replay(self) -> None:
            calls.append("replay")

    def enter(what: str) -> Callable[[object], Any]:
        return lambda argument: calls.append(what) or nullcontext()

    for name, value in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": enter("stream"),
        "graph": enter("graph"),
        "CUDAGraph": Graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    inputs = graphs._inputs(8, torch.float16, torch.device("cpu"))
    results = (torch.zeros(3),)
    found, replay = graphs._capture(lambda given: calls.append(given) or results, inputs)
    replay()
    first = calls.pop(2)
    assert (first.numel, first.grad.dtype) == (8, torch.float16)
    assert first is not inputs
    assert calls == ["wait", "stream", "wait", "graph", inputs, "replay"]
    assert found is results


def test_a_way_of_topk_is_forced_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[str] = []
    monkeypatch.setattr(cuda, "kernels", lambda device: SimpleNamespace(force_topk=ways.append))
    with pytest.raises(KeyError), kernels.forced(GPU, "radix"):
        raise KeyError
    assert ways == ["radix", "auto"]


@pytest.mark.parametrize(("capability", "architecture"), [((9, 0), "90"), ((8, 6), "86"), ((10, 0), "100")])
def test_what_is_asked_of_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    architecture: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA H200")
    assert building.architecture_of(GPU) == architecture
    assert timings.is_bound_to(GPU)
    assert not timings.is_bound_to(torch.device("cpu"))
    assert check.facts("cuda", "full")["card"] == "NVIDIA H200"
