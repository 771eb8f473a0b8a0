"""Every door of hvd_compress.native: a typed error that names the argument, and nothing written."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hvd_compress import _native, native
from hvd_compress.errors import ConfigError, MismatchError, UnsupportedError
from hvd_compress.native import cuda, module

INDICES = torch.zeros(2, dtype=torch.int32)
BITS = torch.zeros(1, dtype=torch.uint8)
BYTES = torch.zeros(6, dtype=torch.uint8)
ONES, SIX = torch.ones(2), torch.ones(6)
SCALE = torch.ones(())
UP = torch.tensor([1, 4], dtype=torch.int32)
KEY = {"seed": 1, "step": 2, "bucket": 3}
FORM, FOUR = native.BlockFormat(8), native.BlockFormat(4)
CODES, UNITS = torch.zeros(64, dtype=torch.uint8), torch.ones(1).bfloat16()
SENT = native.BlockCodes(CODES, UNITS)

CALLS: dict[str, tuple[str, Callable[[torch.Tensor], object]]] = {
    "accumulate grad": ("grad", lambda t: native.accumulate(t, torch.ones(6), torch.ones(6))),
    "accumulate residual": ("residual", lambda t: native.accumulate(torch.ones(6), t, torch.ones(6))),
    "accumulate out": ("out", lambda t: native.accumulate(torch.ones(6), torch.ones(6), t)),
    "topk x": ("x", lambda t: native.topk(t, 1)),
    "scale x": ("x", lambda t: native.scale(t, 0.5)),
    "topk_accumulate grad": ("grad", lambda t: native.topk_accumulate(t, torch.ones(6), 1)),
    "topk_accumulate residual": ("residual", lambda t: native.topk_accumulate(torch.ones(6), t, 1)),
    "topk_accumulate out": ("out", lambda t: native.topk_accumulate(torch.ones(6), torch.ones(6), 1, t)),
    "gather x": ("x", lambda t: native.gather(t, INDICES)),
    "gather indices": ("indices", lambda t: native.gather(torch.ones(6), t)),
    "take x": ("x", lambda t: native.take(t, INDICES)),
    "take indices": ("indices", lambda t: native.take(torch.ones(6), t)),
    "scatter_add indices": ("indices", lambda t: native.scatter_add(t, ONES, torch.ones(6), 1.0)),
    "scatter_add values": ("values", lambda t: native.scatter_add(INDICES, t, torch.ones(6), 1.0)),
    "scatter_add out": ("out", lambda t: native.scatter_add(INDICES, ONES, t, 1.0)),
    "scatter_set indices": ("indices", lambda t: native.scatter_set(t, ONES, torch.ones(6), 1.0)),
    "scatter_set values": ("values", lambda t: native.scatter_set(INDICES, t, torch.ones(6), 1.0)),
    "scatter_set out": ("out", lambda t: native.scatter_set(INDICES, ONES, t, 1.0)),
    "sign_accumulate grad": ("grad", lambda t: native.sign_accumulate(t, torch.ones(6))),
    "sign_accumulate residual": ("residual", lambda t: native.sign_accumulate(torch.ones(6), t)),
    "sign_accumulate out": ("out", lambda t: native.sign_accumulate(torch.ones(6), torch.ones(6), t)),
    "sign_accumulate_kept grad": ("grad", lambda t: native.sign_accumulate_kept(t, torch.ones(6), SCALE)),
    "sign_accumulate_kept kept": ("residual", lambda t: native.sign_accumulate_kept(torch.ones(6), t, SCALE)),
    "sign_accumulate_kept scale": ("kept_scale", lambda t: native.sign_accumulate_kept(ONES, 1 * ONES, t)),
    "mstopk x": ("x", lambda t: native.mstopk(t, 1)),
    "mstopk_accumulate grad": ("grad", lambda t: native.mstopk_accumulate(t, torch.ones(6), 1)),
    "mstopk_accumulate residual": ("residual", lambda t: native.mstopk_accumulate(torch.ones(6), t, 1)),
    "mstopk_accumulate out": ("out", lambda t: native.mstopk_accumulate(torch.ones(6), torch.ones(6), 1, out=t)),
    "sign_add bits": ("bits", lambda t: native.sign_add(t, 1.0, torch.ones(6), 1.0)),
    "sign_add scale": ("scale", lambda t: native.sign_add(BITS, t, torch.ones(6), 1.0)),
    "sign_add out": ("out", lambda t: native.sign_add(BITS, 1.0, t, 1.0)),
    "topk_accumulate indices": (
        "indices",
        lambda t: native.topk_accumulate(ONES, 1 * ONES, 1, into=(t, torch.ones(1))),
    ),
    "topk_accumulate values": ("values", lambda t: native.topk_accumulate(ONES, 1 * ONES, 1, into=(INDICES[:1], t))),
    "threshold_select x": ("x", lambda t: native.threshold_select(t, 1.0)),
    "threshold_accumulate grad": ("grad", lambda t: native.threshold_accumulate(t, SIX, 1.0, torch.ones(6))),
    "threshold_accumulate residual": ("residual", lambda t: native.threshold_accumulate(SIX, t, 1.0, torch.ones(6))),
    "threshold_accumulate out": ("out", lambda t: native.threshold_accumulate(SIX, 1 * SIX, 1.0, t)),
    "threshold_accumulate velocity": (
        "momentum.velocity",
        lambda t: native.threshold_accumulate(SIX, 1 * SIX, 1.0, torch.ones(6), native.Momentum(0.9, t, torch.ones(6))),
    ),
    "threshold_accumulate velocity_out": (
        "momentum.out",
        lambda t: native.threshold_accumulate(SIX, 1 * SIX, 1.0, torch.ones(6), native.Momentum(0.9, 2 * SIX, t)),
    ),
    "gain_curve x": ("x", native.gain_curve),
    "scatter_lists indices": ("indices of list 0", lambda t: native.scatter_lists([(t, ONES)], torch.ones(6), 1.0)),
    "scatter_lists values": ("values of list 0", lambda t: native.scatter_lists([(UP, t)], torch.ones(6), 1.0)),
    "scatter_lists out": ("out", lambda t: native.scatter_lists([(UP, ONES)], t, 1.0)),
    "block_encode codes": ("codes", lambda t: native.block_encode(t, 6, FOUR)),
    "block_decode coded": ("coded", lambda t: native.block_decode(t, 6, FOUR)),
    "elias_fano_encode indices": ("indices", lambda t: native.elias_fano_encode(t, 9)),
    "elias_fano_decode words": ("words", lambda t: native.elias_fano_decode(t, 9, 2)),
    "quantize_accumulate grad": ("grad", lambda t: native.quantize_accumulate(t, torch.ones(6), 8, **KEY)),
    "quantize_accumulate residual": ("residual", lambda t: native.quantize_accumulate(torch.ones(6), t, 8, **KEY)),
    "quantize_accumulate out": (
        "out",
        lambda t: native.quantize_accumulate(torch.ones(6), torch.ones(6), 8, out=t, **KEY),
    ),
    "quantize_add packed": ("packed", lambda t: native.quantize_add(t, 1.0, torch.ones(6), 8, 1.0)),
    "quantize_add norm": ("norm", lambda t: native.quantize_add(BYTES, t, torch.ones(6), 8, 1.0)),
    "quantize_add out": ("out", lambda t: native.quantize_add(BYTES, 1.0, t, 8, 1.0)),
    "block_quantize grad": ("grad", lambda t: native.block_quantize(t, torch.ones(6), FORM)),
    "block_quantize residual": ("residual", lambda t: native.block_quantize(torch.ones(6), t, FORM)),
    "block_quantize out": (
        "out",
        lambda t: native.block_quantize(torch.ones(6), torch.ones(6), FORM, out=t),
    ),
    "block_sum codes": (
        "codes",
        lambda t: native.block_sum([native.BlockCodes(t, UNITS)], torch.ones(6), FORM, 1.0),
    ),
    "block_sum units": (
        "units",
        lambda t: native.block_sum([native.BlockCodes(CODES, t)], torch.ones(6), FORM, 1.0),
    ),
    "block_sum out": ("out", lambda t: native.block_sum([SENT], t, FORM, 1.0)),
    "block_sum_quantize own": ("own", lambda t: native.block_sum_quantize(t, [SENT], 0, FORM)),
    "block_sum_quantize rest": (
        "rest",
        lambda t: native.block_sum_quantize(torch.ones(6), [SENT], 0, FORM, rest=t),
    ),
}


def _own_dtype(name: str) -> torch.dtype:
    known = {
        "indices": torch.int32,
        "words": torch.int32,
        "units": torch.bfloat16,
        **dict.fromkeys(("bits", "packed", "codes", "coded"), torch.uint8),
    }
    return known.get(name.split()[0], torch.float32)


def _refuses(name: str, tensor: torch.Tensor, error: type[Exception], match: str) -> None:
    before = tensor.clone() if tensor.device.type == "cpu" else None
    with pytest.raises(error, match=match):
        CALLS[name][1](tensor)
    assert before is None or torch.equal(tensor, before)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool, torch.complex64])
def test_wrong_dtype(name: str, dtype: torch.dtype) -> None:
    _refuses(name, torch.ones(6, dtype=dtype), ConfigError, f"{CALLS[name][0]} must be of .*got {dtype}")


@pytest.mark.parametrize("name", CALLS)
def test_not_contiguous(name: str) -> None:
    tensor = torch.ones(12, dtype=_own_dtype(CALLS[name][0]))[::2]
    _refuses(name, tensor, ConfigError, f"{CALLS[name][0]} must be contiguous")


@pytest.mark.parametrize("name", CALLS)
def test_two_dimensions(name: str) -> None:
    tensor = torch.ones(2, 3, dtype=_own_dtype(CALLS[name][0]))
    _refuses(name, tensor, ConfigError, rf"{CALLS[name][0]} must be .*one-dimensional, got shape \(2, 3\)")


@pytest.mark.parametrize("name", CALLS)
def test_another_device(name: str) -> None:
    tensor = torch.ones(6, dtype=_own_dtype(CALLS[name][0]), device="meta")
    _refuses(name, tensor, ConfigError, f"{CALLS[name][0]} must be on the CPU or on a CUDA device, got meta")


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name][0] not in ("scale", "norm")])
def test_no_tensor(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{CALLS[name][0]} must be a (torch.Tensor|number or a tensor).*, got "):
        CALLS[name][1]([1.0])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CALLS)
def test_sparse(name: str) -> None:
    tensor = torch.ones(6, dtype=_own_dtype(CALLS[name][0])).to_sparse()
    with pytest.raises(ConfigError, match=CALLS[name][0]):
        CALLS[name][1](tensor)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in CALLS
        if ("accumulate" in n or n.startswith("block_quantize ")) and CALLS[n][0] in ("grad", "residual", "out")
    ],
)
@pytest.mark.parametrize("numel", [0, 5, 9])
def test_lengths_of_gradient_residual_and_out_that_differ(name: str, numel: int) -> None:
    _refuses(name, torch.ones(numel), ConfigError, "elements, grad has")


def test_a_tensor_whose_memory_was_given_back() -> None:
    x = torch.ones(6)
    x.untyped_storage().resize_(0)
    with pytest.raises(ConfigError, match="x has no memory behind it"):
        native.topk(x, 1)


@pytest.fixture
def library_afresh() -> Iterator[None]:
    cuda.load.cache_clear()
    yield
    cuda.load.cache_clear()


def test_cuda_without_the_library(library_afresh: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the device alone, since no machine without CUDA can make such a tensor."""
    monkeypatch.setattr(cuda, "LIBRARY", tmp_path / "none.so")
    with pytest.raises(UnsupportedError, match=r"CUDA kernels cannot be loaded .*none\.so.* install the CUDA toolkit"):
        cuda.kernels(torch.device("cuda", 1))


@pytest.mark.parametrize("k", [-1, 7, 2**40, 1.0, True, None])
def test_bad_k(k: int) -> None:
    grad, residual, out = torch.ones(6), torch.ones(6), torch.full((6,), 5.0)
    with pytest.raises(ConfigError, match=r"\bk\b"):
        native.topk(grad, k)
    with pytest.raises(ConfigError, match=r"\bk\b"):
        native.topk_accumulate(grad, residual, k, out)
    with pytest.raises(ConfigError, match=r"\bk\b"):
        native.mstopk_accumulate(grad, residual, k, out=out)
    assert (out == 5.0).all()


@pytest.mark.parametrize("factor", ["0.9", None, True])
def test_a_factor_that_is_no_number(factor: float) -> None:
    out = torch.full((6,), 5.0)
    with pytest.raises(ConfigError, match=r"momentum\.factor must be a number"):
        native.threshold_accumulate(SIX, 1 * SIX, 1.0, out, native.Momentum(factor, 1 * SIX, 1 * SIX))
    assert (out == 5.0).all()


@pytest.mark.parametrize("kernel", [native.accumulate, native.sign_accumulate])
@pytest.mark.parametrize(("grad", "residual"), [(torch.float32, torch.float16), (torch.float16, torch.bfloat16)])
def test_residual_of_another_small_dtype(
    kernel: Callable[..., object], grad: torch.dtype, residual: torch.dtype
) -> None:
    with pytest.raises(ConfigError, match=r"residual must be of torch\.float32"):
        kernel(torch.ones(6, dtype=grad), torch.ones(6, dtype=residual))


def test_out_must_have_the_residuals_dtype() -> None:
    with pytest.raises(ConfigError, match=r"out must be of torch\.float32, got torch\.float16"):
        native.accumulate(torch.ones(6).half(), torch.ones(6), torch.ones(6).half())


def test_overlap() -> None:
    buffer = torch.arange(12.0)
    with pytest.raises(ConfigError, match="residual and out overlap in 20 bytes"):
        native.accumulate(torch.ones(6), buffer[:6], buffer[1:7])
    with pytest.raises(ConfigError, match="grad and out overlap in 4 bytes"):
        native.topk_accumulate(buffer[:6], torch.ones(6), 1, buffer[5:11])
    with pytest.raises(ConfigError, match="grad and out overlap in 12 bytes"):
        native.sign_accumulate(buffer.view(torch.float16)[:6], torch.ones(6), buffer[:6])
    with pytest.raises(ConfigError, match="grad and out overlap in 4 bytes"):
        native.mstopk_accumulate(buffer[:6], torch.ones(6), 1, out=buffer[5:11])
    with pytest.raises(ConfigError, match="residual and out overlap in 24 bytes"):
        native.threshold_accumulate(SIX, buffer[:6], 1.0, buffer[:6])
    velocity = native.Momentum(0.9, buffer[:6], buffer[5:11])
    with pytest.raises(ConfigError, match=r"momentum\.velocity and momentum\.out overlap in 4 bytes"):
        native.threshold_accumulate(SIX, 1 * SIX, 1.0, torch.ones(6), velocity)
    velocity = native.Momentum(0.9, 1 * SIX, buffer[:6])
    with pytest.raises(ConfigError, match=r"momentum\.out and out overlap in 24 bytes"):
        native.threshold_accumulate(SIX, 1 * SIX, 1.0, buffer[:6], velocity)
    with pytest.raises(ConfigError, match="values and out overlap"):
        native.scatter_add(INDICES, buffer[:2], buffer[1:], 1.0)
    with pytest.raises(ConfigError, match="indices and out overlap"):
        native.scatter_set(buffer.view(torch.int32)[:2], ONES, buffer, 1.0)
    with pytest.raises(ConfigError, match="indices and x overlap"):
        native.take(buffer, buffer.view(torch.int32)[:2])
    with pytest.raises(ConfigError, match="bits and out overlap"):
        native.sign_add(buffer.view(torch.uint8)[:2], 1.0, buffer, 1.0)
    with pytest.raises(ConfigError, match="packed and out overlap"):
        native.quantize_add(buffer.view(torch.uint8)[:12], 1.0, buffer, 8, 1.0)
    with pytest.raises(ConfigError, match="indices of list 0 and out overlap"):
        native.scatter_lists([(buffer.view(torch.int32)[:2], ONES)], buffer, 1.0)
    with pytest.raises(ConfigError, match="values of list 0 and out overlap"):
        native.scatter_lists([(UP, buffer[:2])], buffer, 1.0)
    sent = native.BlockCodes(buffer.view(torch.uint8)[:32], UNITS)
    with pytest.raises(ConfigError, match="codes and out overlap"):
        native.block_sum([sent], buffer, native.BlockFormat(4), 1.0)
    sent = native.BlockCodes(torch.empty(32, dtype=torch.uint8), buffer.view(torch.bfloat16)[:1])
    with pytest.raises(ConfigError, match="units and out overlap in 2 bytes"):
        native.block_sum([sent], buffer, native.BlockFormat(4), 1.0)
    with pytest.raises(ConfigError, match="rest and own overlap in 20 bytes"):
        native.block_sum_quantize(buffer[:6], [], 0, FORM, rest=buffer[1:7])
    assert torch.equal(buffer, torch.arange(12.0))


@pytest.mark.parametrize("numel", [5, 7])
def test_what_a_sum_leaves_has_its_length(numel: int) -> None:
    with pytest.raises(ConfigError, match=f"rest has {numel} elements, own has 6"):
        native.block_sum_quantize(torch.ones(6), [], 0, FORM, rest=torch.ones(numel))


def test_own_has_a_place_among_the_others() -> None:
    sent = native.block_quantize(torch.ones(6), None, FORM)
    for place in (-1, 2):
        with pytest.raises(ConfigError, match=f"place = {place} is not a whole number in 0..1"):
            native.block_sum_quantize(torch.ones(6), [sent], place, FORM)


def test_sources_beyond_what_one_call_adds() -> None:
    sent = native.block_quantize(torch.ones(6), None, FORM)
    with pytest.raises(ConfigError, match="1025 sources are more than the 1024 that one call adds"):
        native.block_sum([sent] * 1025, torch.ones(6), FORM, 1.0)


def test_an_input_that_changed_during_the_call_is_told() -> None:
    """As if another thread had written to it between the two halves of the call."""
    x, indices, values = torch.ones(6), torch.empty(7, dtype=torch.int32), torch.empty(7)
    workspace = torch.empty(_native.threshold_workspace_bytes(6), dtype=torch.uint8)
    call = (x.data_ptr(), 0, 6, 0.5)
    count = _native.threshold_count(*call, workspace.data_ptr(), workspace.numel())
    with pytest.raises(RuntimeError, match="was written to during the call"):
        _native.threshold_select(
            *call, count + 1, indices.data_ptr(), values.data_ptr(), workspace.data_ptr(), workspace.numel()
        )


def test_a_view_that_negates_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"x is a view that negates .* call .resolve_neg\(\) first"):
        native.topk(torch.tensor([1 + 2j]).conj().imag, 1)


def test_a_tensor_without_memory_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="x only stands for a tensor"):
        torch.func.functionalize(lambda x: native.topk(x, 2)[1])(torch.randn(5))


def test_autograd_learns_of_what_is_written() -> None:
    with pytest.raises(ConfigError, match=r"out requires a gradient.*pass out.detach\(\)"):
        native.accumulate(torch.ones(5), torch.nn.Parameter(torch.ones(5)))
    x = torch.ones(5, requires_grad=True)
    y = x.exp()
    total = (y * y).sum()
    native.accumulate(torch.ones(5), y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("scale", [[], [1.0, 2.0], "x", None, True])
def test_a_scale_that_is_no_number(scale: object) -> None:
    with pytest.raises(ConfigError, match="scale must be a number or a tensor of one"):
        native.sign_add(BITS, scale, torch.ones(6), 1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_torch_makes_by_default_does_not_matter(dtype: torch.dtype) -> None:
    x, before = torch.ones(1000), torch.get_default_dtype()
    expected = native.quantize_accumulate(x, torch.zeros_like(x), 8, seed=1, step=1, bucket=1)
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = native.quantize_accumulate(x, torch.zeros_like(x), 8, seed=1, step=1, bucket=1)
            native.gain_curve(x)
            assert native.topk(x, 10)[0].device.type == "cpu"
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_lists_without_brackets() -> None:
    with pytest.raises(ConfigError, match="lists must be a sequence of pairs"):
        native.scatter_lists((UP, ONES), torch.ones(6), 1.0)  # type: ignore[arg-type]


def test_neighbours_do_not_overlap() -> None:
    buffer = torch.ones(12)
    assert native.accumulate(torch.ones(6), buffer[:6], buffer[6:])
    assert buffer.tolist() == [1.0] * 6 + [2.0] * 6


def test_start_between_two_elements() -> None:
    tensor = torch.frombuffer(bytearray(33), dtype=torch.float32, offset=1, count=4)
    with pytest.raises(ConfigError, match="x does not start at a multiple of its element size, 4 bytes"):
        native.topk(tensor, 1)


@pytest.mark.parametrize("scatter", [native.scatter_add, native.scatter_set])
def test_lengths_that_do_not_match(scatter: Callable[..., None]) -> None:
    out = torch.full((6,), 5.0)
    with pytest.raises(MismatchError, match="2 indices for 3 values"):
        scatter(INDICES, torch.ones(3), out, 1.0)
    assert (out == 5.0).all()


@pytest.mark.parametrize("length", [0, 2])
def test_wrong_number_of_sign_bytes(length: int) -> None:
    out = torch.full((6,), 5.0)
    with pytest.raises(MismatchError, match=f"{length} bytes of signs for 6 elements, expected 1"):
        native.sign_add(torch.ones(length, dtype=torch.uint8), 1.0, out, 1.0)
    assert (out == 5.0).all()


@pytest.mark.parametrize("shape", [(0,), (2,)])
def test_scale_of_more_than_one_element(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="scale must be one element"):
        native.sign_add(BITS, torch.ones(shape), torch.ones(6), 1.0)


def test_more_elements_than_int32_reaches(tmp_path: Path) -> None:
    """The file has holes for contents, so that nobody pays for 4 GiB as long as nobody reads them."""
    path = tmp_path / "hole"
    with path.open("wb") as file:
        file.truncate(2**32)
    x = torch.from_file(str(path), shared=True, size=2**31, dtype=torch.float16)
    with pytest.raises(ConfigError, match="x has 2147483648 elements; int32 indices reach 2147483647"):
        native.topk(x, 1)
    with pytest.raises(ConfigError, match="grad has 2147483648 elements"):
        native.accumulate(x, x)
    assert path.stat().st_blocks == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda n: _native.accumulate(0, 0, 0, 0, 0, n),
        lambda n: _native.scale(0, 0, n, 1.0),
        lambda n: _native.topk(0, 0, n, 1, 0, 0, 0, 2**40),
        lambda n: _native.topk_accumulate(0, 0, 0, 0, 0, n, 1, 0, 0, 0, 2**40),
        lambda n: _native.sign_accumulate(0, 0, 0, 0, 0, n, 0, 0, 0, 2**40),
        lambda n: _native.sign_accumulate_kept(0, 0, 0, 0, 0, 0, n, 0, 0, 0, 2**40),
        lambda n: _native.sign_add(0, 0, 0, 0, n, 1.0),
        lambda n: _native.gather(0, 0, n, 0, 1, 0),
        lambda n: _native.take(0, 0, n, 0, 1, 0),
        lambda n: _native.scatter_add(0, 0, 0, 1, 0, 0, n, 1.0),
        lambda n: _native.scatter_set(0, 0, 0, 1, 0, 0, n, 1.0),
        lambda n: _native.scatter_lists([(0, 0, 1)], 0, 0, 0, n, 1.0, False),
        lambda n: _native.threshold_count(0, 0, n, 1.0, 0, 2**40),
        lambda n: _native.threshold_select(0, 0, n, 1.0, 1, 0, 0, 0, 2**40),
        lambda n: _native.threshold_accumulate(0, 0, 0, 0.9, 0, 0, 0, n, 1.0, 0, 2**40),
        lambda n: _native.threshold_take(0, 0, n, 1.0, 1, 0, 0, 0, 2**40),
        lambda n: _native.mstopk(0, 0, n, 1, 25, 0, 0, 0, 2**40),
        lambda n: _native.mstopk_accumulate(0, 0, 0, 0, 0, n, 1, 25, 0, 0, 0, 2**40),
        lambda n: _native.magnitude_curve(0, 0, n, 0, 0, 0, 2**40),
        lambda n: _native.quantize_accumulate(0, 0, 0, 0, 0, n, 8, 0, 1, 2, 3, 0, 0, 0, 2**40),
        lambda n: _native.quantize_add(0, 0, 0, 0, n, 8, 1.0),
        lambda n: _native.block_quantize(0, 0, 0, 0, n, 127, 64, 0, False, 1, 2, 3, 0, 0),
        lambda n: _native.block_sum([(0, 0)], n, 127, 64, 1.0, 0, 0),
        lambda n: _native.block_sum_quantize(0, 0, [(0, 0)], 0, 0, n, 127, 64, 0, False, 1, 2, 3, 0, 0),
        lambda n: _native.block_encode(0, n, 3, 0),
        lambda n: _native.block_decode(0, 0, n, 3, 0),
        lambda n: _native.elias_fano_encode(0, 1, n, 0),
        lambda n: _native.elias_fano_decode(0, 1, n, 0, 0, 2**40),
        lambda n: _native.decode_attention(
            0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, n, 4, 0, 1, 4, 4, 0, 0, 1, 1.0, 0, 0, 2**40
        ),
    ],
)
def test_launchers_refuse_sizes_before_they_read(call: Callable[[int], object]) -> None:
    """All addresses are null: to read anything would end this process."""
    with pytest.raises(RuntimeError, match=r"more than 2\^31 - 1 elements"):
        call(2**31)
    with pytest.raises(RuntimeError, match="a size is negative"):
        call(-1)


def test_launchers_refuse_what_they_have_no_code_for() -> None:
    with pytest.raises(RuntimeError, match="dtype"):
        _native.accumulate(0, 0, 0, 0, 1, 4)  # fp32 gradient, fp16 residual
    with pytest.raises(RuntimeError, match="dtype"):
        _native.accumulate(0, 3, 0, 0, 3, 4)
    with pytest.raises(RuntimeError, match="dtype"):
        _native.scale(0, 3, 4, 1.0)
    with pytest.raises(RuntimeError, match="dtype"):
        _native.threshold_accumulate(0, 3, 0, 0.9, 0, 0, 0, 4, 1.0, 0, 2**40)
    with pytest.raises(RuntimeError, match="dtype"):
        _native.mstopk_accumulate(0, 0, 0, 0, 1, 4, 1, 25, 0, 0, 0, 2**40)
    with pytest.raises(RuntimeError, match="dtype"):
        _native.decode_attention(0, 1, 1, 3, 0, 1, 1, 0, 0, 0, 1, 4, 4, 0, 1, 4, 4, 0, 0, 1, 1.0, 0, 0, 2**40)
    with pytest.raises(RuntimeError, match="workspace"):
        _native.topk(0, 0, 4, 1, 0, 0, 0, _native.topk_workspace_bytes(4, 1) - 1)
    with pytest.raises(RuntimeError, match="workspace"):
        _native.sign_accumulate(0, 0, 0, 0, 0, 4, 0, 0, 0, 7)
    for call in (
        lambda: _native.threshold_count(0, 0, 4, 1.0, 0, _native.threshold_workspace_bytes(4) - 1),
        lambda: _native.threshold_accumulate(0, 0, 0, 0.9, 0, 0, 0, 4, 1.0, 0, 7),
        lambda: _native.threshold_take(0, 0, 4, 1.0, 1, 0, 0, 0, 7),
        lambda: _native.mstopk_accumulate(0, 0, 0, 0, 0, 4, 1, 25, 0, 0, 0, 7),
        lambda: _native.magnitude_curve(0, 0, 4, 0, 0, 0, _native.curve_workspace_bytes(4) - 1),
        lambda: _native.quantize_accumulate(0, 0, 0, 0, 0, 4, 8, 0, 1, 2, 3, 0, 0, 0, 7),
        lambda: _native.elias_fano_decode(0, 2, 4, 0, 0, _native.elias_fano_workspace_bytes(4, 2) - 1),
        lambda: _native.decode_attention(
            *(0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 4, 4, 0, 1, 4, 4, 0, 0, 1, 1.0, 0, 0),
            _native.decode_attention_workspace_bytes(1, 1, 1, 1, 4, 1) - 1,
        ),
    ):
        with pytest.raises(RuntimeError, match="workspace"):
            call()
    for refused in (
        lambda: _native.copy_tokens(0, 1, 0, 0, 0, 4, 0, 1, 0, 0),
        lambda: _native.copy_tokens(0, 1, 1, 0, 0, 4, 0, -1, 0, 0),
        lambda: _native.elias_fano_encode(0, 5, 4, 0),  # more indices than elements
        lambda: _native.elias_fano_decode(0, 5, 4, 0, 0, 2**40),
        lambda: _native.elias_fano_decode(0, -1, 4, 0, 0, 2**40),
        lambda: _native.block_quantize(0, 0, 0, 0, 4, 5, 64, 0, False, 1, 2, 3, 0, 0),
        lambda: _native.block_quantize(0, 0, 0, 0, 4, 127, 96, 0, False, 1, 2, 3, 0, 0),
        lambda: _native.block_quantize(0, 0, 0, 0, 4, 7, 64, 1, False, 1, 2, 3, 0, 0),
        lambda: _native.block_sum([], 4, 127, 64, 1.0, 0, 0),
        lambda: _native.block_encode(0, 4, 127, 0),
        lambda: _native.block_decode(0, 0, 4, 5, 0),
        lambda: _native.block_sum_quantize(0, 0, [(0, 0)], 2, 0, 4, 127, 64, 0, False, 1, 2, 3, 0, 0),
    ):
        with pytest.raises(RuntimeError, match="a size is negative"):
            refused()


def test_memory_for_the_result_must_fit_and_lie_apart() -> None:
    grad, residual = torch.ones(6), torch.ones(6)
    indices, values = torch.empty(2, dtype=torch.int32), torch.empty(2)
    assert native.topk_accumulate(grad, residual, 2, into=(indices, values))[0] is indices
    assert indices.tolist() == [0, 1]
    assert values.tolist() == [2.0, 2.0]
    with pytest.raises(ConfigError, match=r"into: indices must be of shape \(3,\), got \(2,\)"):
        native.topk_accumulate(grad, residual, 3, into=(indices, values))
    with pytest.raises(ConfigError, match="into: values and another tensor of the call overlap"):
        native.topk_accumulate(grad, residual, 2, into=(indices, residual[:2]))
    with pytest.raises(ConfigError, match="into: values and another tensor of the call overlap"):
        native.topk_accumulate(grad, residual, 2, into=(indices, indices.view(torch.float32)))


def test_a_missing_module_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(module, "compiled", type(module.compiled)())  # as if nothing had been called yet
    with pytest.raises(ConfigError, match=r"No module named 'hvd_compress._native'.*pip install \."):
        native.topk(torch.ones(3), 1)


@pytest.fixture(scope="module", autouse=True)
def level() -> None:
    """In the place of conftest's: arguments are checked before any level is chosen."""


@pytest.mark.level2
def test_the_module_is_loaded_at_the_first_call_only() -> None:
    script = "import sys; import hvd_compress.native; sys.exit('hvd_compress._native' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
