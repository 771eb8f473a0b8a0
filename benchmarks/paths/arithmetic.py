"""Which constant for a message, where nothing is measured? What each loses, on networks of which the formulas hold.

    python benchmarks/paths/arithmetic.py

A quantiser's bucket goes by all-to-all and all-gather, or by all-gather: more messages or more bytes. The arithmetic
takes the path with the fewest bytes, a message counting as a constant. A case is a number of ranks, a network, and a
bucket; its loss is what the chosen path takes over what the fastest one takes. Seconds of kernels are not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, Requantizer, SignSGD
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import VERBS, Formulas, Terms
from hvd_compress.cost.paths import Path
from hvd_compress.cost.quick import SIZES
from hvd_compress.policies.fixed import MARGIN
from hvd_compress.policies.prices import Prices
from hvd_compress.schemes import build

RANKS = (2, 3, 4, 6, 8, 12, 16)
BUCKET_BYTES = [4096 << exponent for exponent in range(15)]
"""Of gradients in fp32, 4 KiB to 64 MiB."""
LATENCIES_S, BITS_PER_S = (1e-4, 3e-4, 1e-3, 5e-3, 2e-2), (2e7, 1e8, 1e9)
COMPRESSORS: tuple[Requantizer, ...] = (BlockQuantizer(8), BlockQuantizer(4), BlockQuantizer(2), SignSGD())
PATHS = Path("alltoall-allgather"), Path("allgather")
KEYS = ("alltoall", "auto"), ("allgather", "auto")
NETWORKS = [(alpha, 8 / bits_per_s) for alpha, bits_per_s in itertools.product(LATENCIES_S, BITS_PER_S)]
CONSTANTS = [0, *(1024 << exponent for exponent in range(2, 9))]
WORSE = 1.1
FOCUS = "int4, 0.5 and 1 MiB, 4 ranks, 100 Mbit/s"

Choose = Callable[[Mapping[Path, Terms], Formulas], Path]
"""Takes messages and bytes by path, and a network."""


def by_constant(message_bytes: int) -> Choose:
    return lambda terms, _: min(terms, key=lambda path: terms[path].seconds(message_bytes, 1.0))


def losses(
    ranks: int,
    compressor: Requantizer,
    choose: Choose,
    sizes: Sequence[int] = BUCKET_BYTES,
    networks: Sequence[tuple[float, float]] = NETWORKS,
) -> Iterator[float]:
    """Yield the loss of each case."""
    for nbytes in sizes:
        terms = terms_of(compressor, nbytes, ranks)
        for alpha, beta in networks:
            taken = {path: own.seconds(alpha, beta) for path, own in terms.items()}
            yield taken[choose(terms, Formulas(alpha, beta, ranks))] / min(taken.values())


def terms_of(compressor: Requantizer, nbytes: int, ranks: int) -> dict[Path, Terms]:
    layout = Layout.of(nbytes // 4)
    stages = {path: build(compressor, path).stages(layout, ranks) for path in PATHS}
    return {p: sum((VERBS[s.verb](s.size, ranks, s.algorithm) for s in own), Terms(0, 0)) for p, own in stages.items()}


def measured_losses(ranks: int) -> Iterator[float]:
    """Yield the losses where collectives were measured at the sizes of `cost/quick.py`, without noise."""
    for (alpha, beta), compressor, nbytes in itertools.product(NETWORKS, COMPRESSORS, BUCKET_BYTES):
        costs, sizes, layout = Formulas(alpha, beta, ranks), tuple(sorted(SIZES)), Layout.of(nbytes // 4)
        curves = {key: Curve(sizes, tuple(costs.seconds(*key, size) for size in sizes)) for key in KEYS}
        schemes = [build(compressor, path) for path in PATHS]
        priced = Prices(Curves(ranks, curves), "").by_path(schemes, layout)
        terms = terms_of(compressor, nbytes, ranks)
        counted = by_constant(compressor.message_bytes)(terms, costs)
        fastest = min(priced, key=priced.__getitem__)
        chosen = fastest if priced[fastest] < (1 - MARGIN) * priced[counted] else counted
        taken = {path: own.seconds(alpha, beta) for path, own in terms.items()}
        yield taken[chosen] / min(taken.values())


def row(label: str, by_ranks: Mapping[int, list[float]]) -> str:
    """Return a row of the table: for each number of ranks the share of cases that lose, their mean, the worst."""
    cells = [f"{mean(x > WORSE for x in own):.0%}, {mean(own):.2f}, {max(own):.2f}" for own in by_ranks.values()]
    return f"| {label} | {' | '.join(cells)} |"


def main() -> None:
    print(f"share of cases that take more than {WORSE} times the fastest, mean loss, worst loss\n")
    print(f"| a message counts as | {' | '.join(f'{ranks} ranks' for ranks in RANKS)} |")
    print(f"| --- |{' --- |' * len(RANKS)}")
    for constant in CONSTANTS:
        choose = by_constant(constant)
        found = {n: [loss for each in COMPRESSORS for loss in losses(n, each, choose)] for n in RANKS}
        print(row(f"{constant >> 10} KiB" if constant else "nothing", found))
    print(row("measured", {n: list(measured_losses(n)) for n in RANKS}))
    print(f"\nloss, {FOCUS}\n")
    print(f"| a message counts as | {' | '.join(f'{1e3 * alpha:g} ms' for alpha in LATENCIES_S)} |")
    print(f"| --- |{' --- |' * len(LATENCIES_S)}")
    for constant in CONSTANTS:
        cells = []
        for alpha in LATENCIES_S:
            own = losses(4, BlockQuantizer(4), by_constant(constant), [1 << 19, 1 << 20], [(alpha, 8e-8)])
            cells.append(", ".join(f"{loss:.2f}" for loss in own))
        print(f"| {f'{constant >> 10} KiB' if constant else 'nothing'} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
