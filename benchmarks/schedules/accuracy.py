"""Accuracy and bytes of COVAP and Accordion on the example's net: 4 ranks in process, without a network.

    python benchmarks/schedules/accuracy.py --seed 1 dense "covap(4)"

Trains Fashion-MNIST for some epochs with a learning rate that decays, and appends a line of JSON for each method and
seed to build/schedules-accuracy.jsonl. `--table` prints what is there, and draws it to
benchmarks/results/schedules.png. 4 minutes a training on one core.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import torch
from adaqs import AdaQS
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).resolve().parents[1] / "time_to_accuracy"))
from tasks import RANKS, TASKS
from training import Replicas

from hvd_compress.compression import Compression
from hvd_compress.request.request import Request

EPOCHS, DECAYS = 10, (7,)
"""Epochs in all, and those before which the learning rate is divided by 10: Accordion's authors decay in half of all
and in five sixths of all of 300."""
EVERY = 1
"""Epochs from one comparison to the next: the authors compare every 10 of 300."""
ROOT = Path(__file__).resolve().parents[2]
FILE, PICTURE = ROOT / "build" / "schedules-accuracy.jsonl", ROOT / "benchmarks" / "results" / "schedules.png"


def adaptive(levels: Sequence[Request]) -> Request:
    return replace(levels[0], policy=AdaQS(tuple(levels[1:])))


def accordion(low: Request, high: Request) -> Request:
    return Compression.accordion(low, high, every=EVERY, per_parameter=True)


METHODS: dict[str, Callable[[], Request]] = {
    "dense": Compression.dense,
    "covap(4)": lambda: Compression.covap(4),
    "covap(4), paper's feedback": lambda: Compression.covap(4, feedback=(0.5, 50, 0.1)),
    "covap(4), no feedback": lambda: Compression.covap(4, feedback=(0.0, 1, 0.0)),
    "covap(4), held": lambda: Compression.covap(4, hold_unsent=True),
    "covap(4, int8)": lambda: Compression.covap(4, sent=Compression.int8()),
    "covap(4, int4)": lambda: Compression.covap(4, sent=Compression.int4()),
    "powersgd(4)": lambda: Compression.powersgd(4),
    "powersgd(1)": lambda: Compression.powersgd(1),
    "accordion(powersgd(4), powersgd(1))": lambda: accordion(Compression.powersgd(4), Compression.powersgd(1)),
    "AdaQS, powersgd 1, 2, 4": lambda: adaptive([Compression.powersgd(rank) for rank in (1, 2, 4)]),
    "topk(0.1)": lambda: Compression.topk(0.1, "allgather"),
    "topk(0.01)": lambda: Compression.topk(0.01, "allgather"),
    "accordion(topk(0.1), topk(0.01))": lambda: accordion(
        Compression.topk(0.1, "allgather"), Compression.topk(0.01, "allgather")
    ),
    "AdaQS, topk 0.01, 0.02, 0.05, 0.1": lambda: adaptive(
        [Compression.topk(ratio, "allgather") for ratio in (0.01, 0.02, 0.05, 0.1)]
    ),
}


def trained(request: Request, seed: int) -> dict[str, Any]:
    """Return accuracies by epoch, bytes that a rank has sent, and how many buckets each decision had, by epoch."""
    task = TASKS["images"]
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    replicas = Replicas(dict(model.named_parameters()), request)
    steps = len(task.data.train) // RANKS // task.batch_size
    accuracies, travelled, rate = [], [], optimizer.param_groups[0]["lr"]
    try:
        for epoch in range(EPOCHS):
            for step in range(steps * epoch, steps * (epoch + 1)):
                for rank in range(RANKS):
                    task.loss(model, task.batch(seed, step, rank)).backward()
                    replicas.take(rank)
                replicas.exchange()
                optimizer.step()
                optimizer.zero_grad()
            travelled.append(replicas.travels())
            rate /= 10 if epoch + 1 in DECAYS else 1
            optimizer.param_groups[0]["lr"] = rate
            replicas.end_epoch([rate])
            with torch.no_grad():
                right = [float((model(x).argmax(1) == y).float().mean()) for x, y in task.validation()]
            accuracies.append(100 * fmean(right))
            print(f"{epoch} {accuracies[-1]:.2f}", end="; ", flush=True)
        replicas.check_alike()
    finally:
        replicas.close()
    return {"accuracies": accuracies, "bytes": replicas.sent_bytes, "travelled": travelled}


@click.command(help=__doc__)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--table", is_flag=True)
@click.argument("methods", nargs=-1, type=click.Choice(list(METHODS)))
def main(seed: int, table: bool, methods: tuple[str, ...]) -> None:
    if table:
        runs = {(each["method"], each["seed"]): each for each in map(json.loads, FILE.read_text().splitlines())}
        _print_table(runs)
        _draw(runs)
        return
    FILE.parent.mkdir(exist_ok=True)
    for method in methods or METHODS:
        print(f"{method}, seed {seed}:", end=" ", flush=True)
        found = trained(METHODS[method](), seed)
        with FILE.open("a") as file:
            file.write(json.dumps({"method": method, "seed": seed, **found}) + "\n")
        print(f"{found['bytes'] / 1e6:.0f} MB", flush=True)


Runs = dict[tuple[str, int], dict[str, Any]]
"""What was trained, by method and seed."""


def _of(runs: Runs, method: str) -> dict[int, dict[str, Any]]:
    return {seed: run for (name, seed), run in runs.items() if name == method}


def _print_table(runs: Runs) -> None:
    print("| method | accuracy, % | lowest - highest | against dense, points | bytes of dense |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for method in METHODS:
        own = _of(runs, method)
        if not own:
            continue
        last = [run["accuracies"][-1] for run in own.values()]
        behind = [run["accuracies"][-1] - runs["dense", seed]["accuracies"][-1] for seed, run in own.items()]
        sent = fmean(run["bytes"] / runs["dense", seed]["bytes"] for seed, run in own.items())
        spread = f"{min(behind):+.2f} to {max(behind):+.2f}"
        print(
            f"| {method} | {fmean(last):.2f} | {min(last):.2f} - {max(last):.2f} | {fmean(behind):+.2f} ({spread}) | "
            f"{sent:.4f} |"
        )


def _draw(runs: Runs) -> None:
    """Accuracy by epoch, and after the last one beside what was sent: means over seeds."""
    figure = Figure(figsize=(14, 5), layout="constrained")
    by_epoch, by_bytes = figure.subplots(1, 2)
    known = [method for method in METHODS if _of(runs, method)]
    for number, method in enumerate(known):
        own = _of(runs, method).values()
        means = [fmean(each) for each in zip(*(run["accuracies"] for run in own), strict=True)]
        style = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
        by_epoch.plot(range(1, len(means) + 1), means, label=method, **style)
        marker = "o" if number < 10 else "D"  # as its line, solid or dashed
        by_bytes.plot(fmean(run["bytes"] for run in own) / 1e6, means[-1], marker, color=style["color"])
    by_epoch.set(xlabel="epoch", ylabel="accuracy, %", ylim=(85, 91))
    figure.legend(*by_epoch.get_legend_handles_labels(), loc="outside right", fontsize=8)
    by_bytes.set(xlabel="MB that a rank sends", ylabel="accuracy after the last epoch, %", xscale="log")
    FigureCanvasAgg(figure)
    figure.savefig(PICTURE, dpi=110)


if __name__ == "__main__":
    main()
