"""By which path, where it is left open? What each rule loses, on networks of which the formulas hold.

    python benchmarks/paths/arithmetic.py

A quantiser's bucket goes by all-to-all and all-gather, or by all-gather: more messages or more bytes. One rule takes
the path with the fewest bytes, a message counting as a constant; the other one prices both by collectives measured at
the sizes of `cost/quick.py`, here without noise. A case is a number of ranks, a compressor, a bucket and a network; its
loss is what the chosen path takes over what the fastest one takes. Seconds of kernels are not counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import BlockQuantizer, Requantizer, SignSGD
from hvd_compress.compressors.base import MESSAGE_BYTES
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import VERBS, Formulas, Terms
from hvd_compress.cost.paths import Path
from hvd_compress.cost.quick import SIZES
from hvd_compress.policies.fixed import MARGIN
from hvd_compress.policies.prices import Prices
from hvd_compress.schemes import build

RANKS = (2, 3, 4, 6, 8, 12, 16)
COMPRESSORS: tuple[Requantizer, ...] = (BlockQuantizer(8), BlockQuantizer(4), BlockQuantizer(2), SignSGD())
BUCKET_BYTES = [4096 << exponent for exponent in range(15)]
"""Of gradients in fp32, 4 KiB to 64 MiB."""
LATENCIES_S, BITS_PER_S = (1e-4, 3e-4, 1e-3, 5e-3, 2e-2), (2e7, 1e8, 1e9)
PATHS = Path("alltoall-allgather"), Path("allgather")
KEYS = ("alltoall", "auto"), ("allgather", "auto")
CONSTANTS = [0, *(1024 << exponent for exponent in range(2, 9))]
BEFORE = 1 << 16
"""The constant up to commit 7669315."""
WORSE = 1.1


@dataclass(frozen=True)
class Case:
    """A bucket of so many bytes of gradients, and the network."""

    ranks: int
    compressor: Requantizer
    nbytes: int
    alpha: float
    bits_per_s: float

    @cached_property
    def costs(self) -> Formulas:
        return Formulas(self.alpha, 8 / self.bits_per_s, self.ranks)

    @cached_property
    def terms(self) -> dict[Path, Terms]:
        """Messages and bytes by path."""
        layout, found = Layout.of(self.nbytes // 4), {}
        for path in PATHS:
            stages = build(self.compressor, path).stages(layout, self.ranks)
            found[path] = sum((VERBS[s.verb](s.size, self.ranks, s.algorithm) for s in stages), Terms(0, 0))
        return found

    def loss(self, path: Path) -> float:
        taken = {each: own.seconds(self.alpha, 8 / self.bits_per_s) for each, own in self.terms.items()}
        return taken[path] / min(taken.values())


Choose = Callable[[Case], Path]


def by_constant(message_bytes: int) -> Choose:
    return lambda case: min(PATHS, key=lambda path: case.terms[path].seconds(message_bytes, 1.0))


def measured(case: Case) -> Path:
    sizes = tuple(sorted(SIZES))
    curves = {key: Curve(sizes, tuple(case.costs.seconds(*key, size) for size in sizes)) for key in KEYS}
    schemes = [build(case.compressor, path) for path in PATHS]
    priced = Prices(Curves(case.ranks, curves), "").by_path(schemes, Layout.of(case.nbytes // 4))
    counted, fastest = by_constant(MESSAGE_BYTES)(case), min(PATHS, key=priced.__getitem__)
    return fastest if priced[fastest] < (1 - MARGIN) * priced[counted] else counted


def cases(ranks: Sequence[int] = RANKS) -> list[Case]:
    return [Case(*each) for each in itertools.product(ranks, COMPRESSORS, BUCKET_BYTES, LATENCIES_S, BITS_PER_S)]


RULES: dict[str, Choose] = {
    **{f"{constant >> 10} KiB" if constant else "nothing": by_constant(constant) for constant in CONSTANTS},
    "measured": measured,
}


def table(head: str, rules: Sequence[str], groups: dict[str, list[Case]]) -> str:
    """Return a table with a row for each group of cases, and a column for each rule."""
    lines = [f"| {head} | {' | '.join(rules)} |", f"| --- |{' --- |' * len(rules)}"]
    for label, group in groups.items():
        lost = [[case.loss(RULES[rule](case)) for case in group] for rule in rules]
        cells = [f"{mean(x > WORSE for x in own):.0%}, {mean(own):.2f}, {max(own):.2f}" for own in lost]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def grouped(found: Iterable[Case], label: Callable[[Case], str]) -> dict[str, list[Case]]:
    groups: dict[str, list[Case]] = {}
    for case in found:
        groups.setdefault(label(case), []).append(case)
    return groups


def size(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


def network(case: Case) -> str:
    return f"{case.bits_per_s / 1e6:g} Mbit/s, {1e3 * case.alpha:g} ms"


def main() -> None:
    of_all, compared = cases(), [f"{BEFORE >> 10} KiB", f"{MESSAGE_BYTES >> 10} KiB", "measured"]
    print(f"share of cases that take more than {WORSE} times the fastest, mean loss, worst loss\n")
    print(table("ranks", list(RULES), grouped(of_all, lambda case: str(case.ranks))))
    several = [case for case in of_all if case.ranks > 2]
    print(f"\n3 to 16 ranks\n\n{table('bucket', compared, grouped(several, lambda case: size(case.nbytes)))}")
    print(f"\n3 to 16 ranks\n\n{table('network', compared, grouped(several, network))}")


if __name__ == "__main__":
    main()
