"""How long whole steps of sparsifiers take, from a gradient and a residual to a payload, next to the floor.

python -m benchmarks.kernels.encode
python -m benchmarks.kernels.encode --threads 1 --cpu-time  # where others use the machine

The floor is torch.add(residual, gradient, out=residual) on buffers of its own with as many threads. All take their
turns within each round, so that a machine that becomes slower does so for all; a ratio is taken round by round. CPU
time does not count what the thread waits for a core, but what memory is slower for the work of others.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence

import click
import torch

from benchmarks.frame.page import ratio_cells, table
from hvd_compress import native
from hvd_compress.bench.kernels import REFERENCE_NUMEL, gradients, times
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import DGC, Input, MSTopK, RandomK, SingleRound, TopK
from hvd_compress.compressors.base import Compressor
from hvd_compress.feedback.states import States

BOUND = 2.5
RATIO = 0.01
COMPRESSORS: dict[str, Compressor] = {
    "topk": TopK(RATIO),
    "mstopk": MSTopK(RATIO),
    "dgc, momentum 0": DGC(RATIO, momentum=0.0),
    "dgc, momentum 0.9": DGC(RATIO),
    "randomk": RandomK(RATIO),
}
BOUNDED = ("mstopk", "dgc, momentum 0", "dgc, momentum 0.9")


def step_of(compressor: Compressor, gradient: torch.Tensor, parameters: int) -> Callable[[], object]:
    """Return a function that encodes one step more and commits it, as a session does."""
    numel = gradient.numel()
    layout = Layout.of(*(numel * (n + 1) // parameters - numel * n // parameters for n in range(parameters)))
    state = States().bind(layout, own=compressor.new_state(layout, gradient.device))
    assert state.residual is not None
    state.residual.current.copy_(0.5 * gradient.roll(1))
    own, taken = gradient.clone(), iter(range(2**31))

    def step() -> object:
        work = Input(own, layout, next(taken), 0, 1.0, state)
        payload = compressor.encode(work) if isinstance(compressor, SingleRound) else next(compressor.rounds(work))
        state.commit()
        return payload

    return step


@click.command(help=__doc__)
@click.option("--size", default=REFERENCE_NUMEL, show_default=True, type=click.IntRange(min=1))
@click.option("--threads", default=2, show_default=True, type=click.IntRange(min=1))
@click.option("--rounds", default=40, show_default=True, type=click.IntRange(min=2))
@click.option("--parameters", default=161, show_default=True, type=click.IntRange(min=1), help="In the bucket.")
@click.option("--data", default="normal", show_default=True, type=click.Choice(["normal", "laplace"]))
@click.option("--cpu-time", is_flag=True, help="Of the calling thread, instead of the time that passes.")
def main(size: int, threads: int, rounds: int, parameters: int, data: str, cpu_time: bool) -> None:
    if cpu_time and threads > 1:
        raise click.UsageError("--cpu-time is that of the calling thread: it needs --threads 1")
    torch.set_num_threads(threads)
    gradient = gradients(data, size)
    residual, nothing = 0.5 * gradient.roll(1), lambda: None
    steps = {name: step_of(compressor, gradient, parameters) for name, compressor in COMPRESSORS.items()}
    calls = [(lambda: torch.add(residual, gradient, out=residual), nothing)]
    clock = time.thread_time if cpu_time else time.perf_counter
    floors, *others = times([*calls, *((step, nothing) for step in steps.values())], rounds, clock)
    level = native.simd_levels()[-1]
    click.echo(f"{platform.processor() or platform.machine()}, {level}, torch {torch.__version__}; {size:,} elements,")
    what = "CPU time" if cpu_time else "time"
    click.echo(f"{data}, ratio {RATIO}, threads: {native.num_threads()}, {what} of {rounds} rounds\n")
    rows = [_row("floor", floors, ["1.000", ""], "")]
    for name, own in zip(steps, others, strict=True):
        cells = ratio_cells([taken / floor for taken, floor in zip(own, floors, strict=True)])
        rows.append(_row(name, own, cells, str(BOUND) if name in BOUNDED else ""))
    click.echo(table(["step", "ms", "least ms", "x floor", "95 %", "bound"], rows))


def _row(name: str, taken_s: Sequence[float], ratios: Sequence[str], bound: str) -> list[str]:
    return [name, f"{1e3 * statistics.median(taken_s):.2f}", f"{1e3 * min(taken_s):.2f}", *ratios, bound]


if __name__ == "__main__":
    main()
