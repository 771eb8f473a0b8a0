"""Codes of a block quantisation in as many bits as their distribution needs."""

from __future__ import annotations

import torch

from hvd_compress.errors import MismatchError, PayloadError
from hvd_compress.native.blocks import BlockFormat
from hvd_compress.native.checks import MAX_NUMEL, check_tensor, checked_int, outputs
from hvd_compress.native.module import on, prepare


def block_encode(
    codes: torch.Tensor, numel: int, format: BlockFormat, into: torch.Tensor | None = None
) -> torch.Tensor:
    """Return codes in fewer bytes, (bytes,) uint8, at most format.coded_bytes(numel), by static tables (Huffman 1952).

    csrc/include/hvd_compress/coded.hpp says it exactly. Of a CUDA tensor the host waits for the length.

    Args:
        codes: (format.code_bytes(numel),) uint8, of block_quantize() or block_sum_quantize().
        numel: elements.
        into: (format.coded_bytes(numel),) uint8, whose beginning is returned.

    Raises:
        MismatchError: there are more or fewer codes.
    """
    most = format.coded_bytes(checked_int("numel", numel, 0, MAX_NUMEL))
    check_tensor("codes", codes, (torch.uint8,))
    if codes.numel() != format.code_bytes(numel):
        raise MismatchError(f"{codes.numel()} bytes of codes for {numel} elements, expected {format.code_bytes(numel)}")
    (found,) = outputs(None if into is None else (into,), (codes,), coded=(most, torch.uint8))
    prepare(like=codes)
    return found[: on(codes).block_encode(codes.data_ptr(), numel, format.most, found.data_ptr())]


def block_decode(
    coded: torch.Tensor, numel: int, format: BlockFormat, into: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the codes that block_encode() was given, (format.code_bytes(numel),) uint8. The host waits.

    Args:
        coded: (bytes,) uint8. It may come from anywhere: nothing outside of it is read.
        numel: elements.
        into: memory for the result, where a caller keeps it.

    Raises:
        PayloadError: it is no code of `numel` elements. What `into` holds then means nothing.
    """
    format.coded_bytes(checked_int("numel", numel, 0, MAX_NUMEL))
    check_tensor("coded", coded, (torch.uint8,))
    (found,) = outputs(None if into is None else (into,), (coded,), codes=(format.code_bytes(numel), torch.uint8))
    prepare(like=coded)
    if not on(coded).block_decode(coded.data_ptr(), coded.numel(), numel, format.most, found.data_ptr()):
        raise PayloadError(f"{coded.numel()} bytes are no code of {numel} elements in {format.bits} bits")
    return found
