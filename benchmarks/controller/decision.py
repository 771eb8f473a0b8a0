"""What it costs to choose a ratio: the look at the gradient, in a step now and then, and the decision for one bucket.

    python benchmarks/controller/decision.py [--gradient FILE] [--numel N]

The look is compared with its floor, `torch.add(residual, gradient, out=residual)`, in the same run; the exact solver
with NSGA-II. The candidates are all that the MPI engine can force; the curves have as many points as calibrated ones.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table

from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import TopK
from hvd_compress.controller.expected import Expected
from hvd_compress.controller.goal import AutoRatio
from hvd_compress.controller.network import Network
from hvd_compress.controller.ratio import RatioChooser
from hvd_compress.controller.tradeoff import knee, nsga2
from hvd_compress.cost.calibrate import SIZES
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.kept import kept
from hvd_compress.engines.base import ALGORITHMS, ALLGATHERS, BROADCASTS, Capabilities
from hvd_compress.feedback.states import BucketState, Residual
from hvd_compress.policies.adaptive import bucket_of, open_paths
from hvd_compress.request.request import Request
from hvd_compress.schemes.base import Exchange, Work
from hvd_compress.schemes.observed import Observed
from hvd_compress.schemes.probe import Probe

CAN = Capabilities((), ALGORITHMS, (torch.float32,), BROADCASTS, ALLGATHERS)
WAYS = open_paths(Request(TopK(0.01)), Layout.of(1), CAN)


class _Nothing(Exchange):
    """What is watched here does nothing: all the time that passes is the watcher's."""

    def encode(self) -> None: ...

    def communicate(self, engine: object) -> None: ...

    def decode(self) -> torch.Tensor:
        return torch.ones((), dtype=torch.bool)


def curves(alpha: float, beta: float, world_size: int) -> Curves:
    """Return curves as calibration would find them, were the formulas true."""
    costs = Formulas(alpha, beta, world_size)
    verbs = {"allreduce": ALGORITHMS, "broadcast": BROADCASTS, "allgather": ALLGATHERS}
    keys = [(verb, name) for verb, names in verbs.items() for name in ("auto", *names)]
    return Curves(world_size, {key: Curve.through({n: costs.seconds(*key, n) for n in SIZES}) for key in keys})


def median_s(call: Callable[[], object], repetitions: int) -> float:
    call()
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


@click.command(help=__doc__)
@click.option("--gradient", type=click.Path(path_type=Path), help="as benchmarks/kernels/save_gradient.py saves it")
@click.option("--numel", default=25_600_000, show_default=True, type=click.IntRange(min=1000))
@click.option("--repetitions", default=9, show_default=True, type=click.IntRange(min=1))
def main(gradient: Path | None, numel: int, repetitions: int) -> None:
    values = torch.load(gradient) if gradient is not None else torch.randn(numel) ** 3
    goal = AutoRatio(low=0.001)
    ks = [kept(values.numel(), ratio) for ratio in goal.ratios]
    residual = torch.zeros_like(values)
    state = BucketState(Residual(residual, torch.zeros_like(values)))
    work = Work(values, Layout.of(values.numel()), 0, 0, 1.0, state, probe=Probe(ks=tuple(ks)))
    observed = Observed(_Nothing(), work)

    def look() -> None:
        observed.encode()
        observed.decode()

    floor_s = median_s(lambda: torch.add(residual, values, out=residual), repetitions)
    residual.zero_()
    look_s = median_s(look, repetitions)
    curve_s = median_s(lambda: native.gain_curve(values), repetitions)
    gains = native.gain_curve(values).gain(ks).tolist()

    def chooser(solver: str) -> tuple[RatioChooser, Expected]:
        bucket = bucket_of(Layout.of(values.numel()), TopK(goal.start), WAYS)
        expected = Expected(bucket, Network(curves(0.001, 8e-9, 8)))
        for scheme, seconds in (("dense", 0.0), ("allgather", 0.05), ("star", 0.04)):
            expected.kernels.note(scheme, 0.001, seconds)
            expected.kernels.note(scheme, 0.1, 1.2 * seconds)
        ratio = RatioChooser(AutoRatio(low=0.001, solver=solver))
        ratio.learn(gains)
        return ratio, expected

    def decide(ratio: RatioChooser, expected: Expected) -> None:
        ratio.choose(expected.prices(goal.ratios), expected.dense_s)

    exact_s = median_s(lambda: decide(*chooser("exact")), repetitions)
    search_s = median_s(lambda: decide(*chooser("nsga2")), repetitions)
    ratio, expected = chooser("exact")
    options = ratio.options(expected.prices(goal.ratios))
    steps = abs(goal.ratios.index(knee(options).ratio) - goal.ratios.index(knee(nsga2(options)).ratio))

    table = Table("what", "ms", "times floor", title=f"{values.numel():,} elements, torch {torch.__version__}")
    table.add_row("floor: torch.add(residual, gradient)", f"{1e3 * floor_s:.2f}", "1.00")
    table.add_row("gain curve alone", f"{1e3 * curve_s:.2f}", f"{curve_s / floor_s:.2f}")
    table.add_row("a look, all of it", f"{1e3 * look_s:.2f}", f"{look_s / floor_s:.2f}")
    table.add_row(f"a decision, {len(goal.ratios)} ratios x {len(WAYS)} ways", f"{1e3 * exact_s:.2f}", "")
    table.add_row("the same by NSGA-II", f"{1e3 * search_s:.2f}", "")
    Console().print(table)
    print(f"exact and NSGA-II are {steps} steps of the grid apart")


if __name__ == "__main__":
    main()
