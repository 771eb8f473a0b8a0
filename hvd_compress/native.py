"""The compiled kernels, on torch tensors: the only importer of the compiled module.

All tensors are contiguous, one-dimensional, on the CPU and of fp32, fp16 or bf16, but for the int32 indices and the
uint8 bits; none has more than 2^31 - 1 elements. Autograd sees nothing of what is written here. The GIL is released
while a kernel runs. Results depend neither on the number of threads (HVD_COMPRESS_NUM_THREADS, or else as many as torch
uses) nor on which vector instructions the machine has. Scratch memory is kept from call to call, for each thread.

"Corrected" is the error-fed gradient, residual + grad: added in fp32 as torch.add does, rounded once to the residual's
dtype, to nearest even. The residual is fp32 or of the gradient's dtype; `out` receives what the kernel leaves of it, in
the residual's dtype. It is the residual itself by default, may also be `grad`, and else overlaps neither of the two.

Every function raises, before anything is written:
    ConfigError: an argument of a wrong dtype, shape, layout, device or size, or overlapping another; or the compiled
        module is missing.
    UnsupportedError: a CUDA tensor.
    PayloadError: indices out of range, or lengths that do not match: they may come from another rank.

A RuntimeError says that another thread wrote to an input during the call; the results are not to be used then.
"""

from __future__ import annotations

import importlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hvd_compress.errors import ConfigError, PayloadError, UnsupportedError

MAX_NUMEL = 2**31 - 1
"""Elements that int32 indices reach."""

_CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # enum DType in csrc/include/hvd_compress/types.hpp
_FLOATS = tuple(_CODES)

if TYPE_CHECKING:
    from hvd_compress import _native
else:

    class _LazyModule:
        """Imports the compiled module at the first call, so that the package imports without it."""

        def __getattr__(self, name: str) -> Any:
            try:
                module = importlib.import_module("hvd_compress._native")
            except ImportError as error:
                raise ConfigError(
                    f"the compiled kernels cannot be loaded ({error}); build them with `pip install .` in the "
                    "checkout (it needs CMake and a C++17 compiler)"
                ) from error
            return getattr(module, name)

    _native = _LazyModule()


def num_threads() -> int:
    """Return how many threads a kernel uses: HVD_COMPRESS_NUM_THREADS, or else as many as torch.

    Raises ConfigError where the variable is not a whole number, 1 or more.
    """
    text = os.environ.get("HVD_COMPRESS_NUM_THREADS", "").strip()
    if not text:
        return torch.get_num_threads()
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_THREADS:
        raise ConfigError(f"HVD_COMPRESS_NUM_THREADS = {text!r} is not a whole number in 1..{_MAX_THREADS}")
    return int(text)


_MAX_THREADS = 1024

SIMD_LEVELS = ("portable", "avx2", "avx512")


def simd_levels() -> tuple[str, ...]:
    """Return the levels of vector instructions that this machine can run, the one in use by default last."""
    return SIMD_LEVELS[: _native.best_simd_level() + 1]


def set_simd_level(name: str) -> None:
    """Let all kernels use another level, for tests and comparisons. Raises ConfigError for one that cannot run here."""
    if name not in SIMD_LEVELS or not _native.set_simd_level(SIMD_LEVELS.index(name)):
        raise ConfigError(f"SIMD level {name!r} is not one of those that run here: {', '.join(simd_levels())}")


def accumulate(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None) -> bool:
    """Write corrected = residual + grad to `out`; return whether every element of it is finite.

    One pass over memory.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        out: (n,) of the residual's dtype; the residual itself if None.
    """
    out = _feedback_out(grad, residual, out)
    _prepare()
    return _native.accumulate(
        grad.data_ptr(), _CODES[grad.dtype], residual.data_ptr(), out.data_ptr(), _CODES[out.dtype], out.numel()
    )


def topk(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the k elements of largest magnitude, exactly and deterministically: equal ones by the lower index.

    Inf is larger than every finite value, NaN is larger than Inf, and all NaN are equal; so k >= 1 shows whether x has
    an element that is not finite.

    Args:
        x: (n,) fp32, fp16 or bf16.
        k: 0 <= k <= n.

    Returns:
        indices (k,) int32, ascending, and values (k,) of x's dtype.
    """
    _check("x", x)
    k = _checked_k(k, x.numel())
    indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k, dtype=x.dtype)
    workspace = _prepare(_native.topk_workspace_bytes(x.numel(), k))
    _native.topk(
        x.data_ptr(),
        _CODES[x.dtype],
        x.numel(),
        k,
        indices.data_ptr(),
        values.data_ptr(),
        workspace.data_ptr(),
        workspace.numel(),
    )
    return indices, values


def topk_accumulate(
    grad: torch.Tensor,
    residual: torch.Tensor,
    k: int,
    out: torch.Tensor | None = None,
    into: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the k largest of corrected = residual + grad as topk() does; `out` is corrected with those entries 0.

    values and out together are corrected, exactly and in every dtype.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        k: 0 <= k <= n.
        out: (n,) of the residual's dtype; the residual itself if None.
        into: what to return, (k,) int32 and (k,) fp32, where the caller keeps memory for it; else it is made anew.

    Returns:
        indices (k,) int32, ascending, and values (k,) fp32.
    """
    out = _feedback_out(grad, residual, out)
    k = _checked_k(k, out.numel())
    indices, values = into or (torch.empty(k, dtype=torch.int32), torch.empty(k, dtype=torch.float32))
    if into is not None:
        _check_into(into, k, (grad, residual, out))
    workspace = _prepare(_native.topk_workspace_bytes(out.numel(), k))
    _native.topk_accumulate(
        grad.data_ptr(),
        _CODES[grad.dtype],
        residual.data_ptr(),
        out.data_ptr(),
        _CODES[out.dtype],
        out.numel(),
        k,
        indices.data_ptr(),
        values.data_ptr(),
        workspace.data_ptr(),
        workspace.numel(),
    )
    return indices, values


def threshold_select(x: torch.Tensor, tau: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all elements of magnitude tau or more; NaN are among them whatever tau is.

    Args:
        x: (n,) fp32, fp16 or bf16.
        tau: compared in fp32; inf is allowed, NaN is not.

    Returns:
        indices (k,) int32, ascending, and values (k,) of x's dtype.
    """
    _check("x", x)
    if math.isnan(tau):
        raise ConfigError("tau is NaN, to which nothing compares")
    arguments = (x.data_ptr(), _CODES[x.dtype], x.numel(), tau)
    workspace = _prepare(_native.threshold_workspace_bytes(x.numel()))
    _scratch.workspace = torch.empty(0, dtype=torch.uint8)  # not for others, who may run before the second call
    k = _native.threshold_count(*arguments, workspace.data_ptr(), workspace.numel())
    indices, values = torch.empty(k, dtype=torch.int32), torch.empty(k, dtype=x.dtype)
    _native.threshold_select(
        *arguments, k, indices.data_ptr(), values.data_ptr(), workspace.data_ptr(), workspace.numel()
    )
    _scratch.workspace = workspace
    return indices, values


@dataclass(frozen=True)
class GainCurve:
    """How much of ||x||^2 the k elements of largest magnitude hold, for every k.

    Attributes:
        counts: (m + 1,) int64, ascending from 0: how many elements the largest bins of magnitudes hold together; of
            more than 2^20 elements an estimate, but for the largest.
        shares: (m + 1,) float64, ascending from 0 to 1: their share of ||x||^2; NaN where x is not finite.
    """

    counts: torch.Tensor
    shares: torch.Tensor

    def gain(self, k: torch.Tensor | Sequence[int] | int) -> torch.Tensor:
        """Return the share of ||x||^2 that the k largest magnitudes hold, float64, in the shape of k.

        Within 1 % of the exact value: 256 bins lie between a magnitude and its double, and within one the share grows
        in proportion to the number of elements. 1 where all of x is zero.
        """
        at = torch.as_tensor(k, dtype=torch.int64).clamp(0, int(self.counts[-1]))
        above = torch.searchsorted(self.counts, at).clamp(min=1)
        low, high = self.counts[above - 1], self.counts[above]
        part = (at - low).double() / (high - low).clamp(min=1)
        return torch.lerp(self.shares[above - 1], self.shares[above], part)


def gain_curve(x: torch.Tensor) -> GainCurve:
    """Count magnitudes in one pass; what the k largest of them hold can then be asked for every k.

    Of more than 2^20 elements all the largest are counted, and a quarter of the others.

    Args:
        x: (n,) fp32, fp16 or bf16.
    """
    _check("x", x)
    workspace = _prepare(_native.curve_workspace_bytes(x.numel()))
    shift = _native.CURVE_SHIFT
    counts = torch.empty(1 << (31 - shift), dtype=torch.int64)
    _native.magnitude_counts(
        x.data_ptr(), _CODES[x.dtype], x.numel(), counts.data_ptr(), workspace.data_ptr(), workspace.numel()
    )
    used = counts.nonzero().flip(0).reshape(-1)
    # A bin holds the magnitudes from one edge to the next; if they are spread evenly, this is their mean square.
    edges = torch.stack([used << shift, (used + 1) << shift]).int().view(torch.float32).double()
    edges[1] = torch.where(edges[0].isfinite(), edges[1].clamp(max=torch.finfo(torch.float32).max), edges[1])
    squares = (edges[0].square() + edges[0] * edges[1] + edges[1].square()) / 3.0
    squares[used == 0] = 0.0
    mass = torch.cumsum(squares * counts[used], 0)
    zero = torch.zeros(1, dtype=torch.int64)
    if not used.numel() or mass[-1] == 0:  # of nothing, any one element holds all
        return GainCurve(torch.tensor([0, 1]), torch.tensor([0.0, 1.0], dtype=torch.float64))
    return GainCurve(torch.cat([zero, torch.cumsum(counts[used], 0)]), torch.cat([zero.double(), mass / mass[-1]]))


def gather(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return x[indices] (k,) in x's dtype.

    Args:
        x: (n,) fp32, fp16 or bf16.
        indices: (k,) int32 in 0..n-1, in any order, repeated or not.
    """
    _check("x", x)
    _check("indices", indices, (torch.int32,))
    values = torch.empty(indices.numel(), dtype=x.dtype)
    first_bad = _native.gather(
        x.data_ptr(), _CODES[x.dtype], x.numel(), indices.data_ptr(), indices.numel(), values.data_ptr()
    )
    _check_indices(first_bad, indices, x)
    return values


def take(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return x[indices] (k,) in fp32 and set those elements of x to 0; of a repeated index, all but the first give 0.

    Args:
        x: (n,) fp32, fp16 or bf16; changed.
        indices: (k,) int32 in 0..n-1, in any order, repeated or not.
    """
    _check("x", x)
    _check("indices", indices, (torch.int32,))
    _check_apart("indices", indices, "x", x)
    values = torch.empty(indices.numel(), dtype=torch.float32)
    first_bad = _native.take(
        x.data_ptr(), _CODES[x.dtype], x.numel(), indices.data_ptr(), indices.numel(), values.data_ptr()
    )
    _check_indices(first_bad, indices, x)
    return values


def scatter_add(indices: torch.Tensor, values: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """out[indices] += scale * values, in the order of the list; repeated indices add up.

    `scale` and the product are rounded to fp32; each sum is taken in fp32 and rounded to out's dtype.

    Args:
        indices: (k,) int32 in 0..n-1.
        values: (k,) fp32 or out's dtype.
        out: (n,) fp32, fp16 or bf16; changed.
    """
    _scatter(_native.scatter_add, indices, values, out, scale)


def scatter_set(indices: torch.Tensor, values: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """out[indices] = scale * values; of a repeated index the last value stays. Arguments as in scatter_add()."""
    _scatter(_native.scatter_set, indices, values, out, scale)


def scatter_lists(
    lists: Sequence[tuple[torch.Tensor, torch.Tensor]],
    out: torch.Tensor,
    scale: float,
    clear: bool = False,
    origin: str = "list",
) -> None:
    """The same as scatter_add() of one list after the other, to the bit; onto zeros if `clear`. Faster, as it uses
    that each list is sorted.

    Args:
        lists: (indices, values) of each rank: (k,) int32 in 0..n-1, ascending without repetition, and (k,) fp32 or
            out's dtype, the same for all lists.
        out: (n,) fp32, fp16 or bf16; changed.
        origin: what a list is called, before its number, in errors.

    Raises:
        PayloadError: says in which list; `out` is then as it was.
    """
    _check("out", out)
    dtype, lists = out.dtype, list(lists)
    for number, (indices, values) in enumerate(lists):
        _check(f"indices of {origin} {number}", indices, (torch.int32,))
        _check(f"values of {origin} {number}", values, (torch.float32, out.dtype))
        dtype = dtype if number else values.dtype
        if values.dtype != dtype:
            raise ConfigError(f"values of {origin} {number} are of {values.dtype}, those of the first of {dtype}")
        _check_apart(f"indices of {origin} {number}", indices, "out", out)
        _check_apart(f"values of {origin} {number}", values, "out", out)
        if indices.numel() != values.numel():
            raise PayloadError(f"{origin} {number}: {indices.numel()} indices for {values.numel()} values")
    _prepare()
    bad_list, first_bad = _native.scatter_lists(
        [(indices.data_ptr(), values.data_ptr(), indices.numel()) for indices, values in lists],
        _CODES[dtype],
        out.data_ptr(),
        _CODES[out.dtype],
        out.numel(),
        float(scale),
        clear,
    )
    if bad_list >= 0:
        index = int(lists[bad_list][0][first_bad])
        raise PayloadError(
            f"{origin} {bad_list}: index {index} at position {first_bad} of {lists[bad_list][0].numel()} lies outside "
            f"0..{out.numel() - 1}, or does not lie above the one before"
        )


def sign_accumulate(
    grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compress corrected = residual + grad to its signs and one scale; `out` is corrected - scale * sign(corrected).

    EF-signSGD (Karimireddy et al. 2019, Algorithm 1). scale = mean |corrected|, summed in fp64 in an order that does
    not depend on threads; it is 0 for n = 0, and not finite exactly if an element of corrected is not. `out` is rounded
    to its dtype, and so, unlike after topk_accumulate(), may not add up with what is sent to the last bit.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        out: (n,) of the residual's dtype; the residual itself if None.

    Returns:
        bits (ceil(n / 8),) uint8: bit i % 8 of byte i // 8, counted from the least significant one, is 1 where
        corrected[i] is not below zero (so for 0, -0 and NaN), and 0 beyond n; and scale () fp32.
    """
    out = _feedback_out(grad, residual, out)
    bits = torch.empty(-(-out.numel() // 8), dtype=torch.uint8)
    scale = torch.empty((), dtype=torch.float32)
    workspace = _prepare(_native.sign_workspace_bytes(out.numel()))
    _native.sign_accumulate(
        grad.data_ptr(),
        _CODES[grad.dtype],
        residual.data_ptr(),
        out.data_ptr(),
        _CODES[out.dtype],
        out.numel(),
        bits.data_ptr(),
        scale.data_ptr(),
        workspace.data_ptr(),
        workspace.numel(),
    )
    return bits, scale


def sign_add(bits: torch.Tensor, scale: float | torch.Tensor, out: torch.Tensor, weight: float) -> None:
    """out += weight * scale where the bit is 1, out -= weight * scale where it is 0.

    `weight` and the product are rounded to fp32; each sum is taken in fp32 and rounded to out's dtype.

    Args:
        bits: (ceil(n / 8),) uint8, as from sign_accumulate(); bits beyond n are ignored.
        scale: a number, or a tensor () or (1,) of fp32.
        out: (n,) fp32, fp16 or bf16; changed.
    """
    _check("bits", bits, (torch.uint8,))
    _check("out", out)
    _check_apart("bits", bits, "out", out)
    expected = -(-out.numel() // 8)
    if bits.numel() != expected:
        raise PayloadError(f"{bits.numel()} bytes of signs for {out.numel()} elements, expected {expected}")
    factor = _one_float("scale", scale)
    _prepare()
    _native.sign_add(bits.data_ptr(), factor.data_ptr(), out.data_ptr(), _CODES[out.dtype], out.numel(), float(weight))


def quantize_accumulate(
    grad: torch.Tensor,
    residual: torch.Tensor,
    bits: int,
    *,
    seed: int,
    step: int,
    bucket: int,
    norm: str = "l2",
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Round corrected = residual + grad to whole multiples of norm / levels, at random so that the mean is right.

    QSGD (Alistarh et al. 2017, Eq. 2-3) with norm="l2"; TernGrad (Wen et al. 2017, Eq. 3) with bits=2 and norm="max".
    An element v becomes a whole number q of v's sign: |v| * levels / norm, where levels = 2^(bits - 1) - 1, rounded up
    with the probability of its fraction, by random numbers from a counter (csrc/include/hvd_compress/quantize.hpp says
    how exactly). `out` is corrected - q * norm / levels, rounded to its dtype. If the norm is not finite, or next to
    nothing (below 2^-88), all q are 0 and `out` is corrected.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        bits: 2, 4 or 8 for each element.
        seed, step, bucket: the key of the random numbers; 0 <= seed < 2^64, the others modulo 2^32.
        norm: "l2" or "max" of corrected.
        out: (n,) of the residual's dtype; the residual itself if None.

    Returns:
        packed (ceil(n * bits / 8),) uint8: q in two's complement, from the least significant bits on; and norm () fp32.
    """
    out = _feedback_out(grad, residual, out)
    _check_bits(bits)
    if norm not in _NORMS:
        raise ConfigError(f"norm = {norm!r} is not one of {', '.join(_NORMS)}")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed = {seed} lies outside 0..2^64 - 1")
    packed, size = torch.empty(_packed_bytes(out.numel(), bits), dtype=torch.uint8), torch.empty(())
    workspace = _prepare(_native.quantize_workspace_bytes(out.numel()))
    _native.quantize_accumulate(
        grad.data_ptr(),
        _CODES[grad.dtype],
        residual.data_ptr(),
        out.data_ptr(),
        _CODES[out.dtype],
        out.numel(),
        bits,
        _NORMS.index(norm),
        seed,
        step % 2**32,
        bucket % 2**32,
        packed.data_ptr(),
        size.data_ptr(),
        workspace.data_ptr(),
        workspace.numel(),
    )
    return packed, size


def quantize_add(packed: torch.Tensor, norm: float | torch.Tensor, out: torch.Tensor, bits: int, weight: float) -> None:
    """out += weight * q * norm / levels, for what quantize_accumulate() packed.

    Products are rounded to fp32; each sum is taken in fp32 and rounded to out's dtype.

    Args:
        packed: (ceil(n * bits / 8),) uint8.
        norm: a number, or a tensor () or (1,) of fp32.
        out: (n,) fp32, fp16 or bf16; changed.
        bits: 2, 4 or 8.
    """
    _check("packed", packed, (torch.uint8,))
    _check("out", out)
    _check_apart("packed", packed, "out", out)
    _check_bits(bits)
    expected = _packed_bytes(out.numel(), bits)
    if packed.numel() != expected:
        raise PayloadError(f"{packed.numel()} bytes for {out.numel()} elements of {bits} bits, expected {expected}")
    size = _one_float("norm", norm)
    _prepare()
    _native.quantize_add(
        packed.data_ptr(), size.data_ptr(), out.data_ptr(), _CODES[out.dtype], out.numel(), bits, float(weight)
    )


_NORMS = ("l2", "max")


def _check_bits(bits: int) -> None:
    if bits not in (2, 4, 8):
        raise ConfigError(f"bits = {bits!r} is not 2, 4 or 8")


def _packed_bytes(numel: int, bits: int) -> int:
    return -(-numel * bits // 8)


def _scatter(
    kernel: Callable[[int, int, int, int, int, int, int, float], int],
    indices: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    _check("out", out)
    _check("indices", indices, (torch.int32,))
    _check("values", values, (torch.float32, out.dtype))
    _check_apart("indices", indices, "out", out)
    _check_apart("values", values, "out", out)
    if indices.numel() != values.numel():
        raise PayloadError(f"{indices.numel()} indices for {values.numel()} values")
    first_bad = kernel(
        indices.data_ptr(),
        values.data_ptr(),
        _CODES[values.dtype],
        indices.numel(),
        out.data_ptr(),
        _CODES[out.dtype],
        out.numel(),
        float(scale),
    )
    _check_indices(first_bad, indices, out)


def _feedback_out(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Check the three tensors of a kernel with error feedback; return the one to write to."""
    out = residual if out is None else out
    _check("grad", grad)
    _check("residual", residual, (torch.float32, grad.dtype))
    _check("out", out, (residual.dtype,))
    for name, tensor in (("residual", residual), ("out", out)):
        if tensor.numel() != grad.numel():
            raise ConfigError(f"{name} has {tensor.numel()} elements, grad has {grad.numel()}")
    for name, tensor in (("residual", residual), ("grad", grad)):
        if not (tensor.data_ptr() == out.data_ptr() and tensor.dtype == out.dtype):
            _check_apart(name, tensor, "out", out)
    return out


def _check(name: str, tensor: torch.Tensor, dtypes: tuple[torch.dtype, ...] = _FLOATS) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise ConfigError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}")
    _check_device(name, tensor.device)
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dict.fromkeys(dtypes))
        raise ConfigError(f"{name} must be of {wanted}, got {tensor.dtype}")
    if tensor.layout is not torch.strided or tensor.dim() != 1 or not tensor.is_contiguous():
        raise ConfigError(
            f"{name} must be contiguous and one-dimensional, got shape {tuple(tensor.shape)}"
            + (f" with strides {tensor.stride()}" if tensor.layout is torch.strided else f" with {tensor.layout}")
        )
    if tensor.numel() > MAX_NUMEL:
        raise ConfigError(f"{name} has {tensor.numel()} elements; int32 indices reach {MAX_NUMEL}")
    if tensor.untyped_storage().nbytes() < tensor.storage_offset() * tensor.element_size() + tensor.nbytes:
        raise ConfigError(f"{name} has no memory behind it: its storage was resized")
    if tensor.data_ptr() % tensor.element_size():
        raise ConfigError(f"{name} does not start at a multiple of its element size, {tensor.element_size()} bytes")


def _check_device(name: str, device: torch.device) -> None:
    if device.type == "cuda":
        raise UnsupportedError(f"{name} is on {device}: the native kernels run on the CPU only, so far")
    if device.type != "cpu":
        raise ConfigError(f"{name} must be on the CPU, got {device}")


def _check_apart(name: str, tensor: torch.Tensor, other_name: str, other: torch.Tensor) -> None:
    start, other_start = tensor.data_ptr(), other.data_ptr()
    overlap = min(start + tensor.nbytes, other_start + other.nbytes) - max(start, other_start)
    if overlap > 0 and tensor.numel() and other.numel():
        raise ConfigError(f"{name} and {other_name} overlap in {overlap} bytes of memory")


def _check_into(into: tuple[torch.Tensor, torch.Tensor], k: int, others: Sequence[torch.Tensor]) -> None:
    indices, values = into
    _check("indices", indices, (torch.int32,))
    _check("values", values, (torch.float32,))
    if indices.numel() != k or values.numel() != k:
        raise ConfigError(f"into holds {indices.numel()} indices and {values.numel()} values instead of {k}")
    _check_apart("indices", indices, "values", values)
    for other in others:
        _check_apart("indices", indices, "an input", other)
        _check_apart("values", values, "an input", other)


def _check_indices(first_bad: int, indices: torch.Tensor, of: torch.Tensor) -> None:
    if first_bad >= 0:
        raise PayloadError(
            f"index {int(indices[first_bad])} at position {first_bad} of {indices.numel()} lies outside "
            f"0..{of.numel() - 1}"
        )


def _checked_k(k: int, numel: int) -> int:
    if isinstance(k, bool) or not isinstance(k, int):
        raise ConfigError(f"k must be an int, got {k!r}")
    if not 0 <= k <= numel:
        raise ConfigError(f"k = {k} lies outside 0..{numel}, the number of elements")
    return k


def _one_float(name: str, scale: float | torch.Tensor) -> torch.Tensor:
    if not isinstance(scale, torch.Tensor):
        return torch.tensor(scale, dtype=torch.float32)
    _check(name, scale if scale.dim() else scale.reshape(1), (torch.float32,))
    if scale.numel() != 1:
        raise ConfigError(f"{name} must be one element, got {scale.numel()}")
    return scale


class _Scratch(threading.local):
    """What this thread keeps from call to call."""

    workspace = torch.empty(0, dtype=torch.uint8)


_scratch = _Scratch()


def _prepare(size_bytes: int = 0) -> torch.Tensor:
    """Tell the kernels how many threads they may use; return at least so many bytes of scratch memory."""
    _native.set_num_threads(num_threads())
    if _scratch.workspace.numel() < size_bytes:
        _scratch.workspace = torch.empty(size_bytes, dtype=torch.uint8)
    return _scratch.workspace
