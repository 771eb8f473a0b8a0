"""How good are plans? Compared with brute force, with the policies of others, and with Upper Bound.

`python -m benchmarks.planner.run` takes a quarter of an hour on one core, prints what it does, and writes
benchmarks/results/planner.md and planner.png. Traces of models are JSON in a folder (`--traces`, by default
../shared/data/traces). A budget in seconds ends each search: figures depend on the machine where it does.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from benchmarks.frame.store import RESULTS, TRACES
from benchmarks.planner import page, picture
from benchmarks.planner.cases import Case, cases, models
from benchmarks.planner.instances import Distance, distances
from hvd_compress.measuring import machine
from hvd_compress.papers.espresso.bench.testbeds import WORK, slower_than_roofline

PAGE = RESULTS / "planner.md"
Item = TypeVar("Item")

TEXT = """\
# Plans beside the optimum, other policies and Upper Bound

Take from here what a plan of `plan make` is worth. All is predicted: F, the time of a backward pass with all
synchronisation, by the planner's timeline; nothing ran on a GPU. [docs/planner.md](../../docs/planner.md) says what the
policies are.

    {command}

{machine}, one core; {seconds:.0f} s. Budget of a search:
{budget:g} s; three times as much with fusion.

{verdicts}

## Beside brute force

{instances} random problems of 2 to 5 tensors (`instances.py`, seeds from 0), in a reduced tree: {options}.

{optimum}

## Beside other policies and Upper Bound

{count} cases: {models} traces, {compressors} compressors at 1 %, two testbeds, {gpus} GPUs, 8 a host.
Times of compression and networks: `espresso/bench/testbeds.py`, each number with its source. Those of compression
are a roofline of a V100 and of two Xeon 8260, and alphas are assumed: the paper states neither. Links carry what they
promise, and nothing else. FP32 comes to other scaling factors than in the paper's Table 1 (in brackets), with 64 GPUs:
{links}.

The gap is that of throughput below Upper Bound, for which compression takes no time: 1 - (forward + F of Upper
Bound) / (forward + F). Traces have no forward pass: half the backward pass is assumed. `ours` is the local search from
all policies, without fusion. NCF, which is not among the paper's models, has a backward pass of 0.08 ms for 712 MB of
gradients: nothing hides behind it, and whatever compression takes is a gap.

![cumulative distributions of the gap](planner.png)

{policies}

What the forward pass is taken for:

{forward}

What the local search gains over Algorithms 1 and 2, and fusion over none: F of one over F of the other, less 1. With
fusion, Upper Bound has the same buckets, or none where that is less. Sizes of buckets share the budget: where that ends
the search, F with fusion may be a little longer than without.

{gains}

### Times of compression that were measured

The same with {most} GPUs and, on the GPU, what PyTorch's operators took on a V100 for all of ResNet-50
(`TABLE_4_1_MS`): an element takes {slower} times as long as by the roofline. Those of the CPU stay.
{measured}

### Crippled search spaces

Scaling factors of VGG16 with {most} GPUs, as in the paper's Figure 15:

{dimensions}

### Every case

F in ms.

{every}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=TRACES)
    parser.add_argument("--models", default="", help="only these, with commas between")
    parser.add_argument("--compressors", default=",".join(WORK), help="with commas between")
    parser.add_argument("--gpus", default="64,8", help="with commas between")
    parser.add_argument("--instances", type=int, default=400, help="random problems for brute force")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of a search")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page; the picture lies next to it")
    asked = parser.parse_args(arguments)
    traces = models(asked.traces, asked.models.split(",") if asked.models else ())
    if not traces:
        parser.error(f"no traces in {asked.traces}: --traces names a folder of model profiles (docs/planner.md)")
    start, names, gpus = time.monotonic(), asked.compressors.split(","), [int(n) for n in asked.gpus.split(",")]
    near = list(_told("instance", distances(asked.instances, asked.budget), asked.instances, 50))
    total = len(traces) * len(names) * len(gpus) * 2
    found = list(_told("case", cases(traces, gpus, budget_s=asked.budget, compressors=names), total, 1))
    again = cases(traces, gpus[:1], budget_s=asked.budget / 4, measured=True, compressors=names)
    measured = list(_told("case with measured times", again, total // len(gpus), 9))
    asked.out.write_text(_text(asked, near, found, measured, time.monotonic() - start))
    picture.draw(found, asked.out.with_suffix(".png"), gpus[0])
    print(f"{asked.out}, {time.monotonic() - start:.0f} s")


def _told(what: str, items: Iterable[Item], total: int, every: int) -> Iterable[Item]:
    start = time.monotonic()
    for number, item in enumerate(items, 1):
        if number % every == 0 or number == total:
            print(f"{what} {number} of {total}, {time.monotonic() - start:.0f} s", flush=True)
        yield item


def _text(
    asked: argparse.Namespace, near: Sequence[Distance], found: Sequence[Case], measured: Sequence[Case], seconds: float
) -> str:
    return TEXT.format(
        command="python -m benchmarks.planner.run      # needs the traces of models in ../shared/data/traces",
        machine=machine(),
        seconds=seconds,
        budget=asked.budget,
        instances=len(near),
        options="127\noptions with 2 and 3 tensors (compressed once at most, on one device), 12 with 4 and 5",
        optimum=page.optimum(near),
        verdicts=page.verdicts(near, found),
        count=len(found),
        models=len({case.model for case in found}),
        compressors=len({case.compressor for case in found}),
        links=page.links(found),
        gpus=" and ".join(sorted(asked.gpus.split(","), key=int)),
        most=measured[0].gpus,
        slower=page.listed(f"{slower_than_roofline(name):.0f} ({name})" for name in asked.compressors.split(",")),
        policies=page.policies(found),
        forward=page.forward(found),
        gains=page.gains(found),
        measured=page.measured(measured),
        dimensions=page.dimensions(found),
        every=page.every(found),
    )


if __name__ == "__main__":
    main()
