"""Values at indices: read them, take them out, add them.

On CUDA nobody waits to see whether indices are good, and those by which something is written must ascend without
repetition: bad ones are left out, and check_pending() raises what the CPU's kernels raise at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_compress.errors import ConfigError, MismatchError
from hvd_compress.native.checks import check_apart, check_indices, check_tensor, checked_float, written
from hvd_compress.native.faults import about
from hvd_compress.native.module import CODES, on, prepare


def gather(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return x[indices] (k,) in x's dtype.

    Args:
        x: (n,) fp32, fp16 or bf16.
        indices: (k,) int32 in 0..n-1, in any order, repeated or not.
    """
    check_tensor("x", x)
    check_tensor("indices", indices, (torch.int32,))
    check_apart("indices", indices, "x", x)
    values = torch.empty(indices.numel(), dtype=x.dtype, device=x.device)
    first_bad = on(x).gather(
        x.data_ptr(), CODES[x.dtype], x.numel(), indices.data_ptr(), indices.numel(), values.data_ptr()
    )
    check_indices(first_bad, indices, x)
    return values


def take(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return x[indices] (k,) in fp32 and set those elements of x to 0; of a repeated index, all but the first give 0.

    Args:
        x: (n,) fp32, fp16 or bf16; changed.
        indices: (k,) int32 in 0..n-1, in any order, repeated or not.
    """
    check_tensor("x", x)
    check_tensor("indices", indices, (torch.int32,))
    check_apart("indices", indices, "x", x)
    written("x", x)
    values = torch.empty(indices.numel(), dtype=torch.float32, device=x.device)
    first_bad = on(x).take(
        x.data_ptr(), CODES[x.dtype], x.numel(), indices.data_ptr(), indices.numel(), values.data_ptr()
    )
    check_indices(first_bad, indices, x)
    return values


def scatter_add(indices: torch.Tensor, values: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """out[indices] += scale * values, in the order of the list; repeated indices add up.

    `scale` and the product are rounded to fp32; each sum is taken in fp32 and rounded to out's dtype.

    Args:
        indices: (k,) int32 in 0..n-1.
        values: (k,) fp32 or out's dtype.
        out: (n,) fp32, fp16 or bf16; changed.
    """
    _scatter("scatter_add", indices, values, out, scale)


def scatter_set(indices: torch.Tensor, values: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """out[indices] = scale * values; of a repeated index the last value stays. Arguments as in scatter_add()."""
    _scatter("scatter_set", indices, values, out, scale)


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
        MismatchError: says in which list; `out` is then as it was.
    """
    check_tensor("out", out)
    pairs = isinstance(lists, Sequence) and all(isinstance(one, tuple) and len(one) == 2 for one in lists)
    if not pairs:
        raise ConfigError("lists must be a sequence of pairs (indices, values), one of each rank")
    dtype, lists = out.dtype, list(lists)
    for number, (indices, values) in enumerate(lists):
        check_tensor(f"indices of {origin} {number}", indices, (torch.int32,))
        check_tensor(f"values of {origin} {number}", values, (torch.float32, out.dtype))
        dtype = dtype if number else values.dtype
        if values.dtype != dtype:
            raise ConfigError(f"values of {origin} {number} are of {values.dtype}, those of the first of {dtype}")
        check_apart(f"indices of {origin} {number}", indices, "out", out)
        check_apart(f"values of {origin} {number}", values, "out", out)
        if indices.numel() != values.numel():
            raise MismatchError(f"{origin} {number}: {indices.numel()} indices for {values.numel()} values")
    written("out", out)
    prepare(like=out)
    with about(origin):
        bad_list, first_bad = on(out).scatter_lists(
            [(indices.data_ptr(), values.data_ptr(), indices.numel()) for indices, values in lists],
            CODES[dtype],
            out.data_ptr(),
            CODES[out.dtype],
            out.numel(),
            checked_float("scale", scale),
            clear,
        )
    if bad_list >= 0:
        index = int(lists[bad_list][0][first_bad])
        raise MismatchError(
            f"{origin} {bad_list}: index {index} at position {first_bad} of {lists[bad_list][0].numel()} lies outside "
            f"0..{out.numel() - 1}, or does not lie above the one before"
        )


def _scatter(
    kernel: str,
    indices: torch.Tensor,
    values: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    check_tensor("out", out)
    check_tensor("indices", indices, (torch.int32,))
    check_tensor("values", values, (torch.float32, out.dtype))
    check_apart("indices", indices, "out", out)
    check_apart("values", values, "out", out)
    if indices.numel() != values.numel():
        raise MismatchError(f"{indices.numel()} indices for {values.numel()} values")
    written("out", out)
    first_bad = getattr(on(out), kernel)(
        indices.data_ptr(),
        values.data_ptr(),
        CODES[values.dtype],
        indices.numel(),
        out.data_ptr(),
        CODES[out.dtype],
        out.numel(),
        checked_float("scale", scale),
    )
    check_indices(first_bad, indices, out)
