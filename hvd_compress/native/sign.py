"""One bit an element, and a scale."""

from __future__ import annotations

import torch

from hvd_compress.errors import ConfigError, MismatchError
from hvd_compress.native.checks import (
    check_apart,
    check_tensor,
    checked_float,
    feedback_out,
    one_float,
    outputs,
    written,
)
from hvd_compress.native.module import CODES, fed, memory, on, prepare


def sign_accumulate(
    grad: torch.Tensor,
    residual: torch.Tensor,
    out: torch.Tensor | None = None,
    into: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compress corrected = residual + grad to its signs and one scale; `out` is corrected - scale * sign(corrected).

    EF-signSGD (Karimireddy et al. 2019, Algorithm 1). scale = mean |corrected|, summed in fp64 in an order that does
    not depend on threads; it is 0 for n = 0, and not finite exactly if an element of corrected is not. `out` is rounded
    to its dtype, and so, unlike after topk_accumulate(), may not add up with what is sent to the last bit.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        out: (n,) of the residual's dtype; the residual itself if None.
        into: what to return, where the caller keeps memory for it; else it is made anew.

    Returns:
        bits (ceil(n / 8),) uint8: bit i % 8 of byte i // 8, counted from the least significant one, is 1 where
        corrected[i] is not below zero (so for 0, -0 and NaN), and 0 beyond n; and scale () fp32.
    """
    out = feedback_out(grad, residual, out)
    size = -(-out.numel() // 8)
    bits, scale = outputs(into, (out, grad, residual), bits=(size, torch.uint8), scale=(None, torch.float32))
    workspace = prepare(on(out).sign_workspace_bytes(out.numel()), out)
    on(out).sign_accumulate(
        *fed(grad, residual, out),
        bits.data_ptr(),
        scale.data_ptr(),
        *memory(workspace),
    )
    return bits, scale


def sign_accumulate_kept(
    grad: torch.Tensor,
    kept: torch.Tensor,
    kept_scale: torch.Tensor,
    out: torch.Tensor | None = None,
    into: tuple[torch.Tensor, ...] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what sign_accumulate() does in one pass over memory, for one who keeps corrected instead of the residual.

    corrected and its scale say what is left: residual = kept - kept_scale * sign(kept), which this call takes when it
    reads `kept`. Bits and scale are those of sign_accumulate(), to the bit. 12.125 bytes an fp32 element instead of
    20.125. Before the first step `kept` and `kept_scale` are 0.

    Args:
        grad: (n,) fp32, fp16 or bf16.
        kept: (n,) fp32 or grad's dtype: the `out` of the step before.
        kept_scale: () or (1,) fp32: the scale of the step before.
        out: (n,) of kept's dtype, becomes corrected; `kept` itself if None.
        into: what to return, where the caller keeps memory for it; else it is made anew. Its scale may be kept_scale.

    Returns:
        bits and scale as sign_accumulate().
    """
    out = feedback_out(grad, kept, out)
    sent = _scale_of_kept(kept_scale, out)
    size = -(-out.numel() // 8)
    bits, scale = outputs(into, (out, grad, kept), bits=(size, torch.uint8), scale=(None, torch.float32))
    check_apart("bits", bits, "kept_scale", sent)
    workspace = prepare(on(out).sign_workspace_bytes(out.numel()), out)
    on(out).sign_accumulate_kept(
        grad.data_ptr(),
        CODES[grad.dtype],
        kept.data_ptr(),
        sent.data_ptr(),
        out.data_ptr(),
        CODES[out.dtype],
        out.numel(),
        bits.data_ptr(),
        scale.data_ptr(),
        *memory(workspace),
    )
    return bits, scale


def _scale_of_kept(kept_scale: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if not isinstance(kept_scale, torch.Tensor):  # a number would have to come from the device, and to go back
        raise ConfigError(f"kept_scale must be a torch.Tensor, got {type(kept_scale).__name__}")
    return one_float("kept_scale", kept_scale, out)


def sign_add(bits: torch.Tensor, scale: float | torch.Tensor, out: torch.Tensor, weight: float) -> None:
    """out += weight * scale where the bit is 1, out -= weight * scale where it is 0.

    `weight` and the product are rounded to fp32; each sum is taken in fp32 and rounded to out's dtype.

    Args:
        bits: (ceil(n / 8),) uint8, as from sign_accumulate(); bits beyond n are ignored.
        scale: a number, or a tensor () or (1,) of fp32.
        out: (n,) fp32, fp16 or bf16; changed.
    """
    check_tensor("bits", bits, (torch.uint8,))
    check_tensor("out", out)
    check_apart("bits", bits, "out", out)
    expected = -(-out.numel() // 8)
    if bits.numel() != expected:
        raise MismatchError(f"{bits.numel()} bytes of signs for {out.numel()} elements, expected {expected}")
    factor = one_float("scale", scale, out)
    weight = checked_float("weight", weight)
    written("out", out)
    prepare(like=out)
    on(out).sign_add(
        bits.data_ptr(),
        factor.data_ptr(),
        out.data_ptr(),
        CODES[out.dtype],
        out.numel(),
        weight,
    )
