"""What is timed of kernels that work at indices: sums of lists, single elements, and the code of indices."""

from __future__ import annotations

from functools import partial

from benchmarks.gpu.case import FP32, Case, Cases, Data, Run
from hvd_compress import native
from hvd_compress.bench import peers

LISTS = 8
SECTOR = 32
"""Bytes that a GPU moves at least for one element that lies by itself."""


def scatters(data: Data) -> Cases:
    def case(clear: bool) -> Case:
        lists = data.lists(LISTS, 0.01)
        k = lists[0][0].numel()
        return Case(
            data.numel,
            (FP32 if clear else 8) * data.numel + 8 * LISTS * k,
            lambda i: native.scatter_lists(lists, data.outs[i], 1 / LISTS, clear=clear),
            lambda i: peers.scatter_lists(lists, data.outs[i], clear),
        )

    return {"scatter_lists of 8 onto zeros": partial(case, True), "scatter_lists of 8": partial(case, False)}


def at_indices(data: Data) -> Cases:
    """Of one element of a hundred: each moves a sector, once where it is read, twice where it is written, too."""

    def case(name: str, sectors: int) -> Case:
        ((indices, values),) = data.lists(1, 0.01)
        places, k = indices.long(), indices.numel()
        runs: dict[str, tuple[Run, Run]] = {
            "gather": (
                lambda i: native.gather(data.grads[i], indices),
                lambda i: peers.gather(data.grads[i], places),
            ),
            "take": (lambda i: native.take(data.outs[i], indices), lambda i: peers.take(data.outs[i], places)),
            "scatter_add": (
                lambda i: native.scatter_add(indices, values, data.outs[i], 0.1),
                lambda i: peers.scatter_add(places, values, data.outs[i]),
            ),
            "scatter_set": (
                lambda i: native.scatter_set(indices, values, data.outs[i], 0.1),
                lambda i: peers.scatter_set(places, values, data.outs[i]),
            ),
        }
        return Case(data.numel, (8 + sectors * SECTOR) * k, *runs[name])

    sectors = {"gather": 1, "take": 2, "scatter_add": 2, "scatter_set": 2}
    return {f"{name}, ratio 0.01": partial(case, name, moved) for name, moved in sectors.items()}


def codes(data: Data) -> Cases:
    def case(encodes: bool) -> Case:
        ((indices, _),) = data.lists(1, 0.01)
        n, k = data.numel, indices.numel()
        words = native.elias_fano_encode(indices, n)
        if encodes:
            run: Run = lambda i: native.elias_fano_encode(indices, n)  # noqa: E731
            peer: Run = lambda i: peers.elias_fano_encode(indices, n)  # noqa: E731
        else:
            run = lambda i: native.elias_fano_decode(words, n, k)  # noqa: E731
            peer = lambda i: peers.elias_fano_decode(words, n, k)  # noqa: E731
        return Case(n, 4 * k + words.nbytes, run, peer)

    return {"elias_fano_encode, ratio 0.01": partial(case, True), "elias_fano_decode, ratio 0.01": partial(case, False)}
