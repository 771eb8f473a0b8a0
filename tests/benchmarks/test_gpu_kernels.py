"""What the check of the CUDA kernels compares and times: every case runs on the CPU, and the comparison sees faults."""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import calls, cases, cases_of_rounding, graphs, items, page, parity, scales, timings
from benchmarks.gpu.case import Case, Data
from hvd_compress import native
from hvd_compress.bench import peers
from hvd_compress.native import module
from tests.native.conftest import BUILD, PlayedByCpu

CPU = torch.device("cpu")
TILES = Path(os.environ.get("HVD_COMPRESS_TILES", str(BUILD / "tiles.so")))

TINY = scales.SCALES["tiny"]


def wrong_every_other_time(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a function of `native` add 1 to its last result, on the second of two sides that are compared."""
    function, calls = getattr(native, name), []

    def wrong(*arguments: object, **options: object) -> object:
        calls.append(name)
        *results, last = function(*arguments, **options)
        return (*results, last + (len(calls) % 2 == 0))

    monkeypatch.setattr(native, name, wrong)


def test_inputs_pair_every_choice_with_every_other() -> None:
    draws = [parity.Draw.of(number, 5) for number in range(scales.SCALES["full"].rounds)]
    rows = [(d.grad_dtype, d.residual_dtype == d.grad_dtype, d.offset, d.apart, d.kind) for d in draws]
    for one, other in itertools.combinations(range(5), 2):
        values = {row[one] for row in rows}, {row[other] for row in rows}
        pairs = {(row[one], row[other]) for row in rows}
        if {one, other} != {0, 1}:  # with fp32 a residual of fp32 is of the gradient's dtype
            assert len(pairs) == len(values[0]) * len(values[1])
    assert {d.offset for d in draws} == {0, 1, 3}


def test_inputs_lie_where_they_are_to() -> None:
    """And what has not been written is NaN, or what no kernel gives."""
    for number in range(20):
        draw = parity.Draw.of(number, 9)
        inputs = draw.inputs(CPU)
        for tensor in (inputs.grad, inputs.residual, inputs.memory(4, torch.uint8), inputs.memory(None, torch.float32)):
            assert tensor.storage_offset() == draw.offset
        assert (inputs.out() is inputs.residual) != draw.apart
        assert (inputs.into((3, torch.int32)) is None) != draw.apart
    assert inputs.memory(2, torch.bfloat16).isnan().all()
    assert inputs.memory(2, torch.int32).tolist() == [-1, -1]


def test_the_cpu_agrees_with_itself() -> None:
    small, large = parity.small_items(CPU, TINY), parity.large_items(CPU, TINY)
    assert small.keys() == calls.CALLS.keys()
    assert {name.rpartition(", ")[0] for name in large} == small.keys()
    for item in (*small.values(), *large.values()):
        assert item() > 0


def test_large_inputs_are_those_that_were_never_compared() -> None:
    """Second turns of loops, and the curve's sample, from 2^20 elements on."""
    items = parity.large_items(CPU, scales.SCALES["full"])
    by_size = {
        size: [name for name in items if name.endswith(f", {size:,} elements")] for size in (5_000_003, 100_000_007)
    }
    assert len(items) == 2 * len(calls.CALLS) == sum(map(len, by_size.values()))
    for size, names in by_size.items():
        draws = [draw for name in names for draw in items[name].args[1]]
        assert {draw.numel for draw in draws} == {size}
        assert {draw.apart for draw in draws} == ({True} if size == 100_000_007 else {True, False})
        assert {draw.offset for draw in draws} == ({0} if size == 100_000_007 else {0, 1, 3})


@pytest.mark.skipif(not TILES.exists(), reason="the played CUDA kernels were not built: `make unit` does")
def test_the_played_kernels_agree_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of csrc/cuda, unaligned and apart, too."""
    played = PlayedByCpu(ctypes.CDLL(str(TILES)))

    def on_device(call: Callable[[Any], Any], inputs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "compiled", played)
            return call(inputs)

    monkeypatch.setattr(parity, "on_device", on_device)
    for name, item in {**parity.small_items(CPU, TINY), **parity.large_items(CPU, TINY)}.items():
        assert item() > 0, name


def test_a_difference_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_every_other_time(monkeypatch, "topk")
    with pytest.raises(parity.DifferenceError) as told:
        parity.small_items(CPU, TINY)["topk, topk_accumulate by auto"]()
    assert "of 24 inputs give other results than on the CPU: input 0, n = 1, k = 1, float32" in str(told.value)
    assert "offset 0, in place: result 1 differs in 1 of 1 elements, the first at 0:" in str(told.value)
    assert str(told.value).count("; ") == parity.TOLD - 1


def test_a_call_that_fails_is_told_with_its_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And one that ends the process, or hangs, by the last line of the log."""

    def fail(*arguments: object) -> None:
        raise RuntimeError("refused its arguments")

    monkeypatch.setattr(native, "gain_curve", fail)
    draw = "input 0, n = 0, k = 0, float32 and float32, offset 0, in place"
    with pytest.raises(RuntimeError, match=f"^{draw}: RuntimeError: refused its arguments"):
        parity.small_items(CPU, TINY)["gain_curve"]()
    assert capsys.readouterr().out == f"gain_curve: {draw}\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "equal"),
    [
        ([1.0, torch.nan], [1.0, -torch.nan], True),
        ([0.0], [-0.0], False),
        ([1.0], [1.0 + 2**-23], False),
        ([1.0], [1.0, 1.0], False),
    ],
)
def test_equal_is_to_the_bit(ours: list[float], theirs: list[float], equal: bool) -> None:
    tensors = (torch.tensor(ours),), (torch.tensor(theirs),)
    if equal:
        parity.require_equal(*tensors)
        return
    with pytest.raises(parity.DifferenceError):
        parity.require_equal(*tensors)


def test_a_replay_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU calls again in the place of a replay; here it forgets to."""
    items = graphs.items(CPU, TINY)
    assert items.keys() == calls.CALLS.keys() - set(calls.WAITING)
    assert items["scale"]() == 3
    monkeypatch.setattr(graphs, "capture", lambda call, inputs: (call(inputs), lambda: None))
    with pytest.raises(parity.DifferenceError):
        items["scale"]()


def test_every_case_is_timed_beside_its_peer() -> None:
    items = timings.items(CPU, TINY, Path("no library"))
    assert cases.BOUNDS_MS.keys() | cases.TIMES_TORCH.keys() <= items.keys()
    for name, item in items.items():
        row: Any = item()
        if name == timings.TAIL:
            assert row["tail_us"] == pytest.approx(row["topk_us"] - row["accumulate_us"])
            continue
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["ms"] / 1e6), name
        assert min(row["bytes"], row["torch_ms"], row["of_copy"]) > 0, name
        assert (row["bound_ms"], row["missed"], row["cub_ms"]) == (None, [], None), name


def test_peers_compute_what_kernels_do() -> None:
    """Or they would be no peers: the sums that both leave are close."""
    data = Data(4096, CPU, None)
    grad, residual, k = data.grads[0], data.residuals[0], data.k(0.01)
    ours, theirs = residual.clone(), residual.clone()
    native.topk_accumulate(grad, ours, k)
    peers.topk_accumulate(grad, theirs, k)
    assert torch.equal(ours, theirs)
    ours, theirs = residual.clone(), residual.clone()
    native.sign_accumulate(grad, ours)
    peers.sign_accumulate(grad, theirs)
    torch.testing.assert_close(ours, theirs)
    form = native.BlockFormat(4)
    ours, theirs = residual.clone(), residual.clone()
    native.block_quantize(grad, ours, form)
    peers.block_quantize(grad, theirs, form)
    assert (ours - theirs).abs().median() < 1e-2  # units are rounded to bf16
    lists = data.lists(3, 0.1)
    ours, theirs = residual.clone(), residual.clone()
    native.scatter_lists(lists, ours, 1 / 3)
    peers.scatter_lists(lists, theirs, False)
    torch.testing.assert_close(ours, theirs)
    sources = data.sources(3, form)
    wide = [cases_of_rounding._wide(source, form, data.numel) for source in sources]
    native.block_sum(sources, ours, form, 1 / 3)
    peers.block_sum(wide, theirs, form)
    torch.testing.assert_close(ours, theirs)


def test_a_peer_that_fails_leaves_the_kernel_its_row() -> None:

    def fail(i: int) -> None:
        raise RuntimeError("too large")

    case = Case(4, 16.0, lambda i: None, fail)
    with pytest.raises(items.FaultyError, match="its peer of torch: RuntimeError: too large") as told:
        timings.figure("some", lambda: case, timings._Copy(CPU, TINY))
    assert told.value.value["ms"] > 0
    assert told.value.value["torch_ms"] is None


@pytest.mark.parametrize(
    ("ms", "torch_ms", "in_ms", "missed"),
    [
        (0.44, 7.0, True, []),
        (0.46, 7.0, True, ["0.45 ms"]),
        (0.46, 7.0, False, []),
        (0.44, 6.0, False, ["15 times as fast as torch"]),
    ],
)
def test_bounds(ms: float, torch_ms: float, in_ms: bool, missed: list[str]) -> None:
    row = {"ms": ms, "torch_ms": torch_ms}
    assert timings.missed_bounds("topk_accumulate, ratio 0.01", row, in_ms) == missed
    assert timings.missed_bounds("accumulate", row, in_ms) == []


def test_the_page_marks_missed_bounds() -> None:
    row = {
        "numel": 10**8, "ms": 0.46, "bytes": 1.208e9, "gb_per_s": 2626.0, "of_copy": 0.61, "copy_gb_per_s": 4300.0,
        "bound_ms": 0.45, "missed": ["0.45 ms"], "torch_ms": 9.0, "cub_ms": 1.5,
    }  # fmt: skip
    tail = {
        "numel": 1 << 24, "topk_us": 120.0, "accumulate_us": 50.0, "tail_us": 70.0, "bound_us": 35.0, "missed": True,
    }  # fmt: skip
    timed = {"topk_accumulate, ratio 0.01": {"value": row}, "some": {"failure": "it hangs"}, "tail": {"value": tail}}
    facts = {"card": "H200", "torch": "2", "cuda": "13", "scale": "full", "command": "check"}
    sanitized = {"racecheck": {"failure": "Race | reported", "seconds": 9.0}, "memcheck": {"value": "clean"}}
    text = page.page(
        {
            "facts": facts,
            "parts": {"timings": {"items": timed, "seconds": 30.0}, "sanitizers": {"items": sanitized}},
        }
    )
    assert (
        "| topk_accumulate, ratio 0.01 | 100,000,000 | 0.460 | 1,208,000,000 | 2,626 | 61% | 0.45 ! 0.45 ms | 9.00 | "
        "1.50 |" in text
    )
    assert "is 70.0 us; the bound is 35 us on an H200 !." in text
    assert "moves 4,300 GB/s" in text
    assert "- timings, some: it hangs" in text
    assert "| racecheck | Race / reported | 9 |" in text
    assert "| sanitizers | 2 | 1 |  | not ended |" in text


def test_queue_and_bracket() -> None:
    (rows,) = [item() for item in timings.crossover_items(CPU, TINY).values()]
    assert [(row["numel"], row["k"]) for row in rows] == [(4096.0, 64.0)]
    assert min(rows[0]["queue"], rows[0]["bracket"]) > 0
