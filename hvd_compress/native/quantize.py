"""Few bits an element, rounded at random."""

from __future__ import annotations

import torch

from hvd_compress.checks import check_choice
from hvd_compress.errors import MismatchError
from hvd_compress.native.checks import (
    check_apart,
    check_bits,
    check_tensor,
    checked_float,
    checked_int,
    feedback_out,
    one_float,
    outputs,
    written,
)
from hvd_compress.native.module import CODES, fed, memory, on, prepare

_NORMS = ("l2", "max")


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
    into: tuple[torch.Tensor, ...] | None = None,
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
        into: what to return, where the caller keeps memory for it; else it is made anew.

    Returns:
        packed (ceil(n * bits / 8),) uint8: q in two's complement, from the least significant bits on; and norm () fp32.
    """
    out = feedback_out(grad, residual, out)
    check_bits(bits)
    check_choice("norm", norm, _NORMS)
    seed = checked_int("seed", seed, 0, 2**64 - 1)
    step, bucket = (checked_int(name, v, -(2**63), 2**63 - 1) for name, v in (("step", step), ("bucket", bucket)))
    count = _packed_bytes(out.numel(), bits)
    packed, size = outputs(into, (out, grad, residual), packed=(count, torch.uint8), norm=(None, torch.float32))
    workspace = prepare(on(out).quantize_workspace_bytes(out.numel()), out)
    on(out).quantize_accumulate(
        *fed(grad, residual, out),
        bits,
        _NORMS.index(norm),
        seed,
        step % 2**32,
        bucket % 2**32,
        packed.data_ptr(),
        size.data_ptr(),
        *memory(workspace),
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
    check_tensor("packed", packed, (torch.uint8,))
    check_tensor("out", out)
    check_apart("packed", packed, "out", out)
    check_bits(bits)
    expected = _packed_bytes(out.numel(), bits)
    if packed.numel() != expected:
        raise MismatchError(f"{packed.numel()} bytes for {out.numel()} elements of {bits} bits, expected {expected}")
    size = one_float("norm", norm, out)
    weight = checked_float("weight", weight)
    written("out", out)
    prepare(like=out)
    on(out).quantize_add(
        packed.data_ptr(),
        size.data_ptr(),
        out.data_ptr(),
        CODES[out.dtype],
        out.numel(),
        bits,
        weight,
    )


def _packed_bytes(numel: int, bits: int) -> int:
    return -(-numel * bits // 8)
