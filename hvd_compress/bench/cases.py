"""Each native kernel with its arguments, its floor where that is another one's, and what torch does for the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress import native
from hvd_compress.bench import peers

RATIOS = (0.001, 0.01, 0.1)
LISTS = 8
RANKS = 4  # whose codes are added; each of them owns a part of so many


@dataclass(frozen=True)
class Case:
    """A kernel with its arguments. `prepare` restores what a call changes, and is not timed.

    The name is that of the function in hvd_compress.native, a variant after a slash. `floor` is a call on buffers of
    its own and the multiple of its time that counts, where the kernel does not work on as much as the others.
    """

    name: str
    ratio: float | None
    run: Callable[[], object]
    peer: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    floor: tuple[Callable[[], object], float] | None = None


def kernel_names() -> tuple[str, ...]:
    """Return the names of all cases."""
    few = torch.ones(8)
    return tuple(dict.fromkeys(case.name for case in cases(few, few.clone(), lambda: None)))


Restore = Callable[[], object]


def cases(grad: torch.Tensor, residual: torch.Tensor, restore: Restore) -> Iterator[Case]:
    """Yield all kernels on one gradient and residual; `restore` undoes what a call does to the residual."""
    out = torch.zeros_like(grad)
    yield from _selections(grad, residual, restore)
    yield from _fed_thresholds(grad, residual, out, restore)
    yield from _signs_and_levels(grad, residual, out, restore)
    yield from _blocks(grad, residual, out, restore)
    yield from _block_sums(grad, residual, restore)
    yield from _coded(grad)
    yield from _elements(grad, residual, out, restore)
    yield from _indices(grad, out)


def _selections(grad: torch.Tensor, residual: torch.Tensor, restore: Restore) -> Iterator[Case]:
    counts = {ratio: max(1, int(ratio * grad.numel())) for ratio in RATIOS}
    for ratio, k in counts.items():
        run = bind(native.topk_accumulate, grad, residual, k, into=_memory(k))
        yield Case("topk_accumulate", ratio, run, bind(peers.topk_accumulate, grad, residual, k), restore)
    for ratio, k in counts.items():
        yield Case("topk", ratio, bind(native.topk, grad, k, into=_memory(k)), bind(peers.topk, grad, k))
    k = max(1, grad.numel() // 100)
    tau = float(native.topk(grad, k)[1].abs().min())
    run, peer = bind(native.threshold_select, grad, tau), bind(peers.threshold_select, grad, tau)
    yield Case("threshold_select", 0.01, run, peer)
    yield Case("mstopk", 0.01, bind(native.mstopk, grad, k), bind(peers.topk, grad, k))
    run, peer = bind(native.mstopk_accumulate, grad, residual, k), bind(peers.topk_accumulate, grad, residual, k)
    yield Case("mstopk_accumulate", 0.01, run, peer, restore)
    yield Case("gain_curve", None, bind(native.gain_curve, grad), bind(peers.gain_curve, grad))


def _fed_thresholds(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, restore: Restore) -> Iterator[Case]:
    k = max(1, grad.numel() // 100)
    restore()
    momentum = native.Momentum(0.9, grad.roll(1), torch.empty_like(grad))
    for name, own in (("threshold_accumulate", None), ("threshold_accumulate/momentum", momentum)):
        added = grad if own is None else torch.add(grad, own.velocity, alpha=own.factor)
        tau = float(native.topk(residual + added, k)[1].abs().min())
        arguments = (grad, residual, tau, out, own)
        run, peer = bind(native.threshold_accumulate, *arguments), bind(peers.threshold_accumulate, *arguments)
        yield Case(name, 0.01, run, peer, restore)


def _signs_and_levels(
    grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, restore: Restore
) -> Iterator[Case]:
    numel, one = grad.numel(), torch.empty(())
    into, peer = (torch.empty(-(-numel // 8), dtype=torch.uint8), one), bind(peers.sign_accumulate, grad, residual)
    yield Case("sign_accumulate", None, bind(native.sign_accumulate, grad, residual, into=into), peer, restore)
    yield Case("sign_accumulate_kept", None, bind(native.sign_accumulate_kept, grad, residual, one), peer, restore)
    bits, scale = native.sign_accumulate(grad, residual.clone())
    run, peer = bind(native.sign_add, bits, scale, out, 0.1), bind(peers.sign_add, grad >= 0, scale, out)
    yield Case("sign_add", None, run, peer)
    key: dict[str, Any] = {"seed": 1, "step": 2, "bucket": 3}
    for width in (8, 4, 2):
        packed = torch.empty(-(-numel * width // 8), dtype=torch.uint8)
        run = bind(native.quantize_accumulate, grad, residual, width, **key, into=(packed, one))
        peer = bind(peers.quantize_accumulate, grad, residual, width)
        yield Case(f"quantize_accumulate/{width}", None, run, peer, restore)
    packed, norm = native.quantize_accumulate(grad, residual.clone(), 8, **key)
    run = bind(native.quantize_add, packed, norm, out, 8, 0.1)
    yield Case("quantize_add/8", None, run, bind(peers.quantize_add, grad.to(torch.int8), norm, out))


KEY = native.RandomKey(1, 2, 3)
BLOCKS: dict[str, tuple[native.BlockFormat, native.RandomKey | None]] = {
    **{str(bits): (native.BlockFormat(bits), None) for bits in (8, 4, 3, 2.5, 2)},
    "4-random": (native.BlockFormat(4), KEY),
    "2-ternary": (native.BlockFormat(2, fit="ternary"), None),
}


def _blocks(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, restore: Restore) -> Iterator[Case]:
    for name, (form, key) in BLOCKS.items():
        run = bind(native.block_quantize, grad, residual, form, key=key, into=_block_memory(form, grad.numel()))
        peer = bind(peers.block_quantize, _whole(grad, form), _whole(residual, form), form)
        yield Case(f"block_quantize/{name}", None, run, peer, restore)
    for name in ("8", "4", "3", "2.5", "2"):
        form, _ = BLOCKS[name]
        sent = [native.block_quantize(grad.roll(101 * rank), None, form) for rank in range(RANKS)]
        wide = [_wide(codes, form, grad.numel()) for codes in sent]
        run, peer = (
            bind(native.block_sum, sent, out, form, 1 / RANKS),
            bind(peers.block_sum, wide, _whole(out, form), form),
        )
        yield Case(f"block_sum/{name}", None, run, peer)


def _block_sums(grad: torch.Tensor, residual: torch.Tensor, restore: Restore) -> Iterator[Case]:
    numel = max(1, grad.numel() // RANKS)
    part, own = grad[:numel], residual[:numel]
    for name, (form, key) in BLOCKS.items():
        others = [native.block_quantize(part.roll(101 * rank), None, form) for rank in range(1, RANKS)]
        wide = [_wide(codes, form, numel) for codes in others]
        into = _block_memory(form, numel)
        run = bind(native.block_sum_quantize, own, others, 1, form, key=key, rest=own, into=into)
        peer = bind(peers.block_sum_quantize, _whole(own, form), wide, form)
        scale = (8 + RANKS * form.nbytes(numel) / numel) / 12
        yield Case(f"block_sum_quantize/{name}", None, run, peer, restore, (bind(torch.add, own, part, out=own), scale))


def _coded(grad: torch.Tensor) -> Iterator[Case]:
    numel = grad.numel()
    for name in ("4", "3", "2.5", "2-ternary"):
        form, _ = BLOCKS[name]
        codes = native.block_quantize(grad, None, form).codes
        into = torch.empty(form.coded_bytes(numel), dtype=torch.uint8)
        run = bind(native.block_encode, codes, numel, form, into=into)
        yield Case(f"block_encode/{name}", None, run, bind(peers.deflate, codes))
        coded, deflated = native.block_encode(codes, numel, form), peers.deflate(codes)
        run = bind(native.block_decode, coded, numel, form, into=torch.empty_like(codes))
        yield Case(f"block_decode/{name}", None, run, bind(peers.inflate, deflated))


def _block_memory(form: native.BlockFormat, numel: int) -> native.BlockCodes:
    codes = torch.empty(form.code_bytes(numel), dtype=torch.uint8)
    return native.BlockCodes(codes, torch.empty(form.blocks(numel), dtype=torch.bfloat16))


def _whole(x: torch.Tensor, form: native.BlockFormat) -> torch.Tensor:
    """Return the elements of whole blocks: what is left over is too little to count."""
    return x[: x.numel() // form.block * form.block]


def _wide(codes: native.BlockCodes, form: native.BlockFormat, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return whole blocks' numbers (n,) int8, as torch has no type for fewer bits, and units (n / block, 1) fp32."""
    numbers = torch.empty(numel)
    native.block_sum([native.BlockCodes(codes.codes, torch.ones_like(codes.units))], numbers, form, 1.0)
    return _whole(numbers, form).to(torch.int8), codes.units[: numel // form.block, None].float()


def _elements(grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, restore: Restore) -> Iterator[Case]:
    run, peer = bind(native.accumulate, grad, residual), bind(peers.accumulate, grad, residual)
    yield Case("accumulate", None, run, peer, restore)
    yield Case("scale", None, bind(native.scale, out, 1.0), bind(peers.scale, out, 1.0))
    indices = native.topk(grad, max(1, grad.numel() // 100))[0]
    yield Case("gather", 0.01, bind(native.gather, grad, indices), bind(peers.gather, grad, indices.long()))
    run, peer = bind(native.take, residual, indices), bind(peers.take, residual, indices.long())
    yield Case("take", 0.01, run, peer, restore)
    values = native.gather(grad, indices)
    for scatter, other in ((native.scatter_add, peers.scatter_add), (native.scatter_set, peers.scatter_set)):
        run, peer = bind(scatter, indices, values, out, 0.1), bind(other, indices.long(), values, out)
        yield Case(scatter.__name__, 0.01, run, peer)


def _indices(grad: torch.Tensor, out: torch.Tensor) -> Iterator[Case]:
    numel, k = grad.numel(), max(1, grad.numel() // 100)
    indices = native.topk(grad, k)[0]
    words = native.elias_fano_encode(indices, numel)
    run, peer = bind(native.elias_fano_encode, indices, numel), bind(peers.elias_fano_encode, indices, numel)
    yield Case("elias_fano_encode", 0.01, run, peer)
    run, peer = bind(native.elias_fano_decode, words, numel, k), bind(peers.elias_fano_decode, words, numel, k)
    yield Case("elias_fano_decode", 0.01, run, peer)
    lists = [native.topk(grad.roll(101 * rank), k) for rank in range(LISTS)]
    for name, clear in (("scatter_lists", False), ("scatter_lists/clear", True)):
        run = bind(native.scatter_lists, lists, out, 1 / LISTS, clear)
        yield Case(name, 0.01, run, bind(peers.scatter_lists, lists, out, clear))


def bind(function: Callable[..., object], *arguments: object, **named: object) -> Callable[[], object]:
    """Return a call without arguments."""
    return lambda: function(*arguments, **named)


def _memory(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a caller keeps for the result of a selection."""
    return torch.empty(k, dtype=torch.int32), torch.empty(k)
