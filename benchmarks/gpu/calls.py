"""What is compared: every kernel, on inputs that lie anywhere, with results in their place or apart from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from hvd_compress import native
from hvd_compress.errors import PayloadError
from hvd_compress.native import cuda

Tensors = tuple[torch.Tensor, ...]
MOST_OF_QUEUE = 2048
"""kQueueMaxK of csrc/cuda/topk: a queue holds no more."""
BY_THRESHOLD, CODED = "threshold_select, threshold_accumulate", "block_encode, block_decode"
WAITING = (BY_THRESHOLD, CODED)
"""How much they return is up to the data, so that no graph can hold them."""


def at_offset(numel: int | None, dtype: torch.dtype, device: torch.device, offset: int) -> torch.Tensor:
    """Return memory (numel,), or () for None, that begins `offset` elements after an aligned address.

    It holds NaN, or -1 where integers have a sign, so that what a kernel does not write is seen.
    """
    whole = torch.empty((1 if numel is None else numel) + offset, dtype=dtype, device=device)
    whole.fill_(torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max if dtype == torch.uint8 else -1)
    return whole[offset] if numel is None else whole[offset:]


@dataclass(frozen=True)
class Inputs:
    """What a call is given, on one device.

    Attributes:
        grad: (n,) fp32, fp16 or bf16.
        residual: (n,) fp32 or grad's dtype.
        k: how many are selected, and what other choices are made from; 0 <= k <= n.
        offset: elements between an aligned address and all that kernels read and write: views [1:] and [3:].
        apart: whether results go to memory of their own, as in training; else `out` is the residual.
    """

    grad: torch.Tensor
    residual: torch.Tensor
    k: int
    offset: int
    apart: bool

    @classmethod
    def placed(
        cls, grad: torch.Tensor, residual: torch.Tensor, k: int, offset: int, apart: bool, device: torch.device
    ) -> Inputs:
        """Return copies of grad and residual on a device."""
        copies = [at_offset(x.numel(), x.dtype, device, offset) for x in (grad, residual)]
        return cls(copies[0].copy_(grad), copies[1].copy_(residual), k, offset, apart)

    @property
    def numel(self) -> int:
        return self.grad.numel()

    def out(self, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Return where a kernel leaves what remains of a residual: in its place, or apart from it."""
        residual = self.residual if residual is None else residual
        return self.memory(residual.numel(), residual.dtype) if self.apart else residual

    def into(self, *wanted: tuple[int | None, torch.dtype]) -> Tensors | None:
        """Return memory for results, as compressors give it, or None for what the kernel makes itself."""
        return tuple(self.memory(numel, dtype) for numel, dtype in wanted) if self.apart else None

    def codes(self, form: native.BlockFormat) -> native.BlockCodes | None:
        memory = self.into((form.code_bytes(self.numel), torch.uint8), (form.blocks(self.numel), torch.bfloat16))
        return None if memory is None else native.BlockCodes(*memory)

    def memory(self, numel: int | None, dtype: torch.dtype) -> torch.Tensor:
        return at_offset(numel, dtype, self.grad.device, self.offset)

    def copy(self, x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self.memory(x.numel(), dtype or x.dtype).copy_(x)


Call = Callable[[Inputs], Tensors]


@contextmanager
def forced(device: torch.device, way: str) -> Iterator[None]:
    """Let a GPU do each top-k in one of its ways; the CPU has but one."""
    if device.type != "cuda":
        yield
        return
    cuda.kernels(device).force_topk(way)
    try:
        yield
    finally:
        cuda.kernels(device).force_topk("auto")


def _topk(way: str, x: Inputs) -> Tensors:
    k, out = min(x.k, MOST_OF_QUEUE) if way == "queue" else x.k, x.out()
    with forced(x.grad.device, way):
        found = native.topk(x.grad, k, into=x.into((k, torch.int32), (k, x.grad.dtype)))
        into = x.into((k, torch.int32), (k, torch.float32))
        fed = native.topk_accumulate(x.grad, x.residual, k, out=out, into=into)
    return *found, *fed, out, x.residual


def _mstopk(x: Inputs) -> Tensors:
    rounds, out = 1 + x.k % native.MSTOPK_ROUNDS, x.out()
    found = native.mstopk(x.grad, x.k, rounds)
    return *found, *native.mstopk_accumulate(x.grad, x.residual, x.k, rounds, out=out), out, x.residual


def _by_threshold(x: Inputs) -> Tensors:
    """Its residual is fp32, and `out` always apart."""
    residual = x.copy(x.residual, torch.float32)
    out = x.memory(x.numel, torch.float32)
    momentum = None
    if x.k % 2:
        velocity = x.copy(residual.roll(1))
        momentum = native.Momentum(0.9, velocity, x.memory(x.numel, torch.float32))
    found = native.threshold_accumulate(x.grad, residual, 1.5, out, momentum)
    return *native.threshold_select(x.grad, 1.5), *found, out, out if momentum is None else momentum.out


def _accumulate(x: Inputs) -> Tensors:
    out = x.out()
    return _answer(native.accumulate(x.grad, x.residual, out=out)), out, x.residual


def _scale(x: Inputs) -> Tensors:
    return _answer(native.scale(x.grad, 1 / 3)), x.grad


def _signs(x: Inputs) -> Tensors:
    wanted = (-(-x.numel // 8), torch.uint8), (None, torch.float32)
    kept, kept_scale, out = x.copy(x.residual), torch.zeros((), device=x.grad.device), x.out()
    bits, scale = native.sign_accumulate(x.grad, x.residual, out=out, into=x.into(*wanted))
    for _ in range(2):
        corrected = x.out(kept)
        found = native.sign_accumulate_kept(x.grad, kept, kept_scale, out=corrected, into=x.into(*wanted))
        kept, kept_scale = corrected, found[1]
    native.sign_add(bits, scale, x.grad, 0.3)
    return bits, scale, x.grad, out, x.residual, kept, *found


def _numbers(x: Inputs) -> Tensors:
    bits, norm, out = (2, 4, 8)[x.k % 3], ("l2", "max")[x.k % 2], x.out()
    into = x.into((-(-x.numel * bits // 8), torch.uint8), (None, torch.float32))
    packed, size = native.quantize_accumulate(
        x.grad, x.residual, bits, seed=x.k, step=3, bucket=5, norm=norm, out=out, into=into
    )
    native.quantize_add(packed, size, x.grad, bits, 0.3)
    return packed, size, x.grad, out, x.residual


def _blocks(x: Inputs) -> Tensors:
    """Its residual is fp32; sometimes there are more sources than a launch takes along."""
    which = x.k // 2 % 6
    form = native.BlockFormat((8, 4, 3, 2.5, 2, 2)[which], (64, 128, 1024)[x.k % 3], ("max", "ternary")[which == 5])
    key = native.RandomKey(x.k, 3, 5) if x.k % 2 else None
    residual = x.copy(x.residual, torch.float32)
    out, rest = x.out(residual), x.memory(x.numel, torch.float32)
    sent = native.block_quantize(x.grad, residual, form, key=key, out=out, into=x.codes(form))
    others = [sent] * (40 if x.k % 5 == 0 else 3)
    again = native.block_sum_quantize(x.residual, others, 1, form, key=key, rest=rest, into=x.codes(form))
    finite = native.block_sum([sent, again, *others], x.grad, form, 0.3)
    return sent.codes, sent.units, out, residual, again.codes, again.units, rest, x.grad, _answer(finite)


def _coded(x: Inputs) -> Tensors:
    """What a quantiser writes, with a chunk of bytes that none does in front, and a payload that is no code."""
    form = native.BlockFormat((4, 3, 2.5, 2)[x.k % 4])
    codes = x.copy(native.block_quantize(x.grad, None, form).codes)
    strange = codes[: 1 << 14]
    strange.copy_(torch.arange(strange.numel(), device=strange.device).mul(37).bitwise_and(255))
    into = x.into((form.coded_bytes(x.numel), torch.uint8), (form.code_bytes(x.numel), torch.uint8)) or (None, None)
    coded = x.copy(native.block_encode(codes, x.numel, form, into=into[0]))
    found = native.block_decode(coded, x.numel, form, into=into[1]).clone()
    refused = torch.zeros((), dtype=torch.int32, device=coded.device)
    bad = x.copy(coded)
    bad[-(x.k % 100) - 1 :] ^= 85
    try:
        native.block_decode(bad, x.numel, form)
    except PayloadError:
        refused += 1
    return coded, found, refused


BINS_OF_NAN = 255
"""Bins of the curve that NaN alone have. A GPU reads each of fp16 as the same one, so that they lie in another bin."""


def _curve(x: Inputs) -> Tensors:
    found = native.gain_curve(x.grad)
    return found.counts[BINS_OF_NAN + 1 :], found.shares


def _lists(x: Inputs) -> Tensors:
    indices, values = native.topk(x.grad, x.k)
    entries = x.copy(indices), x.copy(values, torch.float32 if x.k % 2 else x.residual.dtype)
    native.scatter_lists([entries, entries], x.residual, 0.3)
    cleared = x.memory(x.numel, x.residual.dtype)
    native.scatter_lists([entries] * 3, cleared, 0.3, clear=True)
    return x.residual, cleared


def _at_indices(x: Inputs) -> Tensors:
    indices = x.copy(native.topk(x.grad, x.k)[0])
    values, taken = native.gather(x.residual, indices), native.take(x.grad, indices)
    native.scatter_add(indices, taken, x.residual, -0.7)
    native.scatter_set(indices, values, x.grad, 0.3)
    return values, taken, x.grad, x.residual


def _code(x: Inputs) -> Tensors:
    indices = x.copy(native.topk(x.grad, x.k)[0])
    words = native.elias_fano_encode(indices, x.numel)
    return words, native.elias_fano_decode(x.copy(words), x.numel, x.k)


def _answer(finite: bool | torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(finite, dtype=torch.int32)


CALLS: dict[str, Call] = {
    **{f"topk, topk_accumulate by {way}": partial(_topk, way) for way in cuda.TOPK_WAYS},
    "sign_accumulate, sign_accumulate_kept, sign_add": _signs,
    "scatter_lists": _lists,
    "gain_curve": _curve,
    "block_quantize, block_sum, block_sum_quantize": _blocks,
    CODED: _coded,
    "quantize_accumulate, quantize_add": _numbers,
    "accumulate": _accumulate,
    "scale": _scale,
    "mstopk, mstopk_accumulate": _mstopk,
    BY_THRESHOLD: _by_threshold,
    "gather, take, scatter_add, scatter_set": _at_indices,
    "elias_fano_encode, elias_fano_decode": _code,
}
"""By the kernels' names: calls that write to what they are given, and return all that has to be equal."""
