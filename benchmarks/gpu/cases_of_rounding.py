"""What is timed of kernels that round: signs, numbers of few bits, and blocks with a unit each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.case import FP32, Case, Cases, Data
from hvd_compress import native
from hvd_compress.bench import peers

SOURCES = 4


def signs(data: Data) -> Cases:
    n, bits = data.numel, data.numel / 8

    def peer(i: int) -> object:
        return peers.sign_accumulate(data.grads[i], data.residuals[i])

    def kept() -> Case:
        scale = torch.zeros((), device=data.device)
        return Case(
            n, 12 * n + bits, lambda i: native.sign_accumulate_kept(data.grads[i], data.residuals[i], scale), peer
        )

    def plain() -> Case:
        return Case(n, 12 * n + bits, lambda i: native.sign_accumulate(data.grads[i], data.residuals[i]), peer)

    def add() -> Case:
        packed, scale = native.sign_accumulate(data.grads[0], data.residuals[0].clone())
        positive = data.grads[0] >= 0
        return Case(
            n,
            8 * n + bits,
            lambda i: native.sign_add(packed, scale, data.outs[i], 0.1),
            lambda i: peers.sign_add(positive, scale, data.outs[i]),
        )

    return {"sign_accumulate_kept": kept, "sign_accumulate": plain, "sign_add": add}


def numbers(data: Data) -> Cases:
    key = {"seed": 1, "step": 2, "bucket": 3}

    def quantize(bits: int) -> Case:
        return Case(
            data.numel,
            (12 + bits / 8) * data.numel,
            lambda i: native.quantize_accumulate(data.grads[i], data.residuals[i], bits, **key),
            lambda i: peers.quantize_accumulate(data.grads[i], data.residuals[i], bits),
        )

    def add() -> Case:
        packed, norm = native.quantize_accumulate(data.grads[0], data.residuals[0].clone(), 8, **key)
        whole = packed.view(torch.int8)
        return Case(
            data.numel,
            9 * data.numel,
            lambda i: native.quantize_add(packed, norm, data.outs[i], 8, 0.1),
            lambda i: peers.quantize_add(whole, norm, data.outs[i]),
        )

    return {
        **{f"quantize_accumulate, {bits} bits": partial(quantize, bits) for bits in (8, 4, 2)},
        "quantize_add, 8 bits": add,
    }


FORMS: dict[str, tuple[native.BlockFormat, native.RandomKey | None]] = {
    "4 bits": (native.BlockFormat(4), None),
    "4 bits at random": (native.BlockFormat(4), native.RandomKey(1, 2, 3)),
    "8 bits": (native.BlockFormat(8), None),
    "3 bits": (native.BlockFormat(3), None),
    "2.5 bits": (native.BlockFormat(2.5), None),
    "2 bits": (native.BlockFormat(2), None),
    "2 bits, ternary": (native.BlockFormat(2, fit="ternary"), None),
}


def blocks(data: Data) -> Cases:
    found: Cases = {}
    for name, (form, key) in FORMS.items():
        found[f"block_quantize, {name}"] = partial(_block_quantize, data, form, key)
        found[f"block_sum_quantize of {SOURCES}, {name}"] = partial(_block_sum_quantize, data, form, key)
        if key is None and form.fit == "max":
            found[f"block_sum of {SOURCES}, {name}"] = partial(_block_sum, data, form)
    for name in ("4 bits", "3 bits"):
        found[f"block_encode, {name}"] = partial(_block_encode, data, FORMS[name][0])
        found[f"block_decode, {name}"] = partial(_block_decode, data, FORMS[name][0])
    return found


def _block_quantize(data: Data, form: native.BlockFormat, key: native.RandomKey | None) -> Case:
    return Case(
        data.numel,
        12 * data.numel + form.nbytes(data.numel),
        lambda i: native.block_quantize(data.grads[i], data.residuals[i], form, key=key),
        lambda i: peers.block_quantize(*_whole_blocks(form, data.grads[i], data.residuals[i]), form),
    )


def _block_encode(data: Data, form: native.BlockFormat) -> Case:
    """The peer is the host's, there and back."""
    codes = native.block_quantize(data.grads[0], None, form).codes
    return Case(
        data.numel,
        2 * codes.numel() + native.block_encode(codes, data.numel, form).numel(),
        lambda i: native.block_encode(codes, data.numel, form),
        lambda i: peers.deflate(codes.cpu()),
    )


def _block_decode(data: Data, form: native.BlockFormat) -> Case:
    codes = native.block_quantize(data.grads[0], None, form).codes
    coded, deflated = native.block_encode(codes, data.numel, form), peers.deflate(codes.cpu())
    return Case(
        data.numel,
        codes.numel() + coded.numel(),
        lambda i: native.block_decode(coded, data.numel, form),
        lambda i: peers.inflate(deflated),
    )


def _block_sum(data: Data, form: native.BlockFormat) -> Case:
    sources = data.sources(SOURCES, form)
    wide = [_wide(source, form, data.numel) for source in sources]
    return Case(
        data.numel,
        FP32 * data.numel + SOURCES * form.nbytes(data.numel),
        lambda i: native.block_sum(sources, data.outs[i], form, 1 / SOURCES),
        lambda i: peers.block_sum(wide, *_whole_blocks(form, data.outs[i]), form),
    )


def _block_sum_quantize(data: Data, form: native.BlockFormat, key: native.RandomKey | None) -> Case:
    _, *others = data.sources(SOURCES, form)
    wide = [_wide(source, form, data.numel) for source in others]
    own = data.residuals
    return Case(
        data.numel,
        8 * data.numel + SOURCES * form.nbytes(data.numel),
        lambda i: native.block_sum_quantize(own[i], others, 1, form, key=key, rest=own[i]),
        lambda i: peers.block_sum_quantize(*_whole_blocks(form, own[i]), wide, form),
    )


def _whole_blocks(form: native.BlockFormat, *tensors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors without the elements after the last whole block, which torch's rows cannot hold."""
    return (x[: x.numel() // form.block * form.block] for x in tensors)


def _wide(source: native.BlockCodes, form: native.BlockFormat, numel: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a source as torch takes it: an element in a byte."""
    ones = native.BlockCodes(source.codes, torch.ones_like(source.units))
    numbers = torch.empty(numel, device=source.codes.device)
    native.block_sum([ones], numbers, form, 1.0)
    blocks = numel // form.block
    return numbers[: blocks * form.block].to(torch.int8), source.units[:blocks, None].float()
