"""What torch's own operations do for the same results as a kernel; they pack no bits. Where torch has no coder,
zlib at its fastest level is the peer."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch

from hvd_compress import native

Lists = Sequence[tuple[torch.Tensor, torch.Tensor]]
Wide = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""Of each source its whole numbers (n,) int8, and its units (n / block, 1) fp32."""


def topk(x: torch.Tensor, k: int) -> object:
    return x.abs().topk(k, sorted=False)


def topk_accumulate(grad: torch.Tensor, residual: torch.Tensor, k: int) -> object:
    residual += grad
    indices = residual.abs().topk(k, sorted=False).indices
    values = residual[indices]
    residual[indices] = 0
    return indices, values


def threshold_select(x: torch.Tensor, tau: float) -> object:
    (indices,) = (x.abs() >= tau).nonzero(as_tuple=True)
    return indices, x[indices]


def threshold_accumulate(
    grad: torch.Tensor, residual: torch.Tensor, tau: float, out: torch.Tensor, momentum: native.Momentum | None
) -> object:
    added = grad
    if momentum is not None:
        added = torch.add(grad, momentum.velocity, alpha=momentum.factor, out=momentum.out)
    torch.add(residual, added, out=out)
    (indices,) = (out.abs() >= tau).nonzero(as_tuple=True)
    values = out[indices]
    for left in (out,) if momentum is None else (out, momentum.out):
        left[indices] = 0
    return indices, values


def sign_accumulate(grad: torch.Tensor, residual: torch.Tensor) -> object:
    residual += grad
    mean = residual.abs().mean()
    residual -= torch.where(residual < 0, -mean, mean)
    return mean


def sign_add(positive: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> object:
    """`positive`: (n,) bool, as torch unpacks no bits."""
    return out.add_(torch.where(positive, scale, -scale), alpha=0.1)


def quantize_accumulate(grad: torch.Tensor, residual: torch.Tensor, bits: int) -> object:
    residual += grad
    unit = residual.norm() / (2 ** (bits - 1) - 1)
    whole = (residual.abs() / unit + torch.rand_like(residual)).floor() * residual.sign()
    residual -= whole * unit
    return whole.to(torch.int8)


def quantize_add(whole: torch.Tensor, norm: torch.Tensor, out: torch.Tensor) -> object:
    return out.addcmul_(whole, norm / 127)


def block_quantize(grad: torch.Tensor, residual: torch.Tensor, form: native.BlockFormat) -> object:
    residual += grad
    return _rounded(residual.view(-1, form.block), form)


def block_sum(sources: Wide, out: torch.Tensor, form: native.BlockFormat) -> object:
    rows = out.zero_().view(-1, form.block)
    for whole, units in sources:
        rows.addcmul_(whole.view(-1, form.block), units)
    return out.div_(len(sources))


def block_sum_quantize(own: torch.Tensor, others: Wide, form: native.BlockFormat) -> object:
    rows = own.view(-1, form.block)
    for whole, units in others:
        rows.addcmul_(whole.view(-1, form.block), units)
    return _rounded(rows, form)


def _rounded(rows: torch.Tensor, form: native.BlockFormat) -> object:
    units = rows.abs().amax(1, keepdim=True) / form.most
    whole = (rows / units).round()
    rows -= whole * units
    return whole.to(torch.int8), units


def gain_curve(x: torch.Tensor) -> object:
    return x.square().sort(descending=True).values.cumsum(0)


def accumulate(grad: torch.Tensor, residual: torch.Tensor) -> object:
    return residual.add_(grad).isfinite().all()


def scale(x: torch.Tensor, factor: float) -> object:
    return x.mul_(factor).isfinite().all()


def gather(x: torch.Tensor, indices: torch.Tensor) -> object:
    return x[indices]


def take(x: torch.Tensor, indices: torch.Tensor) -> object:
    values = x[indices]
    x[indices] = 0
    return values


def scatter_add(indices: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> object:
    return out.index_add_(0, indices, values, alpha=0.1)


def scatter_set(indices: torch.Tensor, values: torch.Tensor, out: torch.Tensor) -> object:
    return out.index_copy_(0, indices, 0.1 * values)


def scatter_lists(lists: Lists, out: torch.Tensor, clear: bool) -> object:
    if clear:
        out.zero_()
    for indices, values in lists:
        out.index_add_(0, indices, values, alpha=1 / len(lists))
    return out


def elias_fano_encode(indices: torch.Tensor, numel: int) -> object:
    """The high bits, a byte each, and the low ones, which torch cannot pack."""
    low_bits = native.EliasFano(numel, indices.numel()).low_bits
    places = torch.arange(indices.numel(), device=indices.device)
    high = torch.zeros(indices.numel() + (numel - 1 >> low_bits), dtype=torch.uint8, device=indices.device)
    high[(indices >> low_bits) + places] = 1
    return high, indices & (1 << low_bits) - 1


def elias_fano_decode(words: torch.Tensor, numel: int, count: int) -> object:
    """The high bits alone: unpacked to a byte each, and where they are ones."""
    low_words = -(-count * native.EliasFano(numel, count).low_bits // 32)
    shifts = torch.arange(32, device=words.device)
    ones = (words[: words.numel() - low_words, None] >> shifts).bitwise_and_(1).reshape(-1).nonzero().reshape(-1)
    return ones - torch.arange(ones.numel(), device=words.device)


def deflate(codes: torch.Tensor) -> bytes:
    return zlib.compress(codes.numpy().data, level=1)


def inflate(deflated: bytes) -> object:
    return zlib.decompress(deflated)
