"""The page of results: the tables and how to read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from benchmarks.frame.page import interval_cell, table
from benchmarks.time_to_accuracy.figures import EVERY, GOALS, SHOWN, STEPS, Figures, Ratio, Steps
from benchmarks.time_to_accuracy.lab import NETWORKS
from benchmarks.time_to_accuracy.losses import LONG, LONG_EVERY
from benchmarks.time_to_accuracy.methods import BASELINE, CLAIMS, LOCAL, METHODS, REFERENCE
from benchmarks.time_to_accuracy.tasks import RANKS, TASKS
from hvd_compress.cost.local_steps import COUNTS, LocalStepsCost

HEAD = """\
# Time to a given loss

How long does training take to the loss that dense reaches after so many steps? Two halves, multiplied: the steps that
a method needs, {ranks} ranks in one process, without a network; and the seconds of its step in the lab, {ranks} hosts
on one machine. The figures are in [time-to-accuracy.json](time-to-accuracy.json), from which
`python -m benchmarks.time_to_accuracy.run page --again` makes this page without measuring.

    python -m benchmarks.time_to_accuracy.run loss         # hours; --tasks, --methods and --seeds take a part
    python -m benchmarks.time_to_accuracy.run seconds      # as root; each call adds rounds; --networks, too
    python -m benchmarks.time_to_accuracy.run confirm      # as root
    python -m benchmarks.time_to_accuracy.run page

{machines}

![loss against seconds](time-to-accuracy.png)
"""
HOW = """\
## How to read it

- *Steps.* Each seed is compared with dense of the same seed. The loss is measured every {every} steps on the same
  validation data; three in a row count as one, and between two of them it goes on a line. A method that has not reached
  dense's loss goes on until it has, or is given up after up to 480 steps: `>` then says what it takes at least.
- *Seconds.* All methods take windows of steps in turns, in another order each round, within one job; a step is forward,
  backward, exchange and optimizer, of the slowest rank. The first step of a window does not count, but at 20 Mbit/s. A
  ratio is the median over rounds of seconds to those of Horovod dense in the same round, with its 95 % interval by
  bootstrap. The interval of a time to a loss draws rounds and seeds.
- *Rivals.* Horovod's are `Compression.none` and `.fp16` of Horovod's own optimizer; DDP's are torch's own, over gloo,
  the PowerSGD hook with rank 4 from its earliest step, 2, on and all gradients in one bucket, without which it never
  ends. torchft 0.2.0 (LocalSGD, DiLoCo) and torch's post-local SGD exchange fp32; their loss against steps is that
  of `every=` with `dense()`. Loss against steps of dense and fp16 counts for all front ends: their arithmetic is the
  same up to the order of sums.
- `auto()` was trained from start to end, its search included, beside `int4()` of the same front end in one job; two of
  the same code differ by 10 to 20 % there.
- Ranks share cores with each other and with Horovod's thread, which polls every millisecond (`HOROVOD_CYCLE_TIME`) also
  while ours or DDP's exchange: with hosts of their own all methods but Horovod's would gain. "No exchange" is what no
  compression can save; what is above it is bytes, latency and kernels. It is the same work on all networks: where it
  takes longer on one of them, that is what sharing two cores costs there, most where latency is short and threads that
  poll are busy. Where other work shares the machine, the intervals are wide.
- Until 26 November 2026 each host of the lab was a session, among which Linux divides cores: a thread that polls on one
  host took 0.3 to 1.4 s of another's training at a time. With one method a job, and hosts in one session, a step of
  `int4()` takes 0.24 (convnet) and 0.30 (transformer) of DDP's dense at 100 Mbit/s, 5 ms; it stands beside its floor in
  [A step and its floor](overlap.md).
- `every=`: [local steps](../../docs/local.md) from the first step on (`start_after=0`). The loss is that of the mean of
  all ranks, which a program has within `averaged()`; a window has as many rounds as others have steps, from the middle
  of one to the middle of another, so that it has all of their exchanges. The exchange of an evaluation is in no figure.
- "In DDP": hvd_compress's hook in a DDP model, over torch.distributed.
"""
CLAIMED = """\
## What papers lead one to expect

Loss above dense's of the same seeds after {steps} steps, in nats. "As dense": at most {close} above it. "Does not
converge": it is still above dense's loss after {early} steps. Each with the settings above, tuned for no method.
"""
LOCAL_HEAD = """\
## The soonest of local steps

To dense's loss of the transformer after {steps} steps. "Met" without more: the interval lies below the bound, and
(bound - mean) * sqrt(seeds) is at least the standard deviation of seeds. "Nearest other": the soonest method of another
package, or DeMo.
"""
AUTO = """\
## What every="auto" takes

By its own arithmetic, of the transformer with `int4()`, from a step without exchange, what an exchange adds to local
steps, and a cosine of {cosine} between what two ranks move in a step, as the training has; next to the best of those
tried.
"""
COSINE, MOST_TRIED = 0.05, 4
LOCAL_BOUNDS = {"100mbit-5ms": 0.24, "20mbit-20ms": 0.08}
"""By network: what local steps may take, in units of Horovod dense's time."""
BESIDE = {"auto": "int4", "auto-ddp": "int4-ddp"}
"""By method that searches, the one that was trained in the same job, and is the best where networks are slow."""
CLOSE, EARLY = 0.02, SHOWN[0]
BOUNDED = "language"
BOUNDS = {
    "1gbit-1ms": {"horovod-fp16": 1.0},
    "100mbit-5ms": {"horovod": 1 / 2.5, "horovod-fp16": 1 / 1.4},
    "20mbit-20ms": {"horovod": 1 / 4, "horovod-fp16": 1 / 2},
}
"""By network and rival: what `int4()` may take, in units of the rival's time."""


def page(figures: Figures) -> str:
    """Return the page, in Markdown."""
    about = figures.kept["circumstances"]
    machines = [f"- {half}: {_machine(each)}" for half in ("losses", "seconds") for each in about[half]]
    parts = [HEAD.format(ranks=RANKS, machines="\n".join(machines))]
    for task in figures.tasks:
        parts += [f"## {TASKS[task].label[0].upper()}{TASKS[task].label[1:]}"]
        parts += [_about(figures, task)]
        parts += [_headline(figures, task, goal) for goal in reversed(GOALS) if figures.networks(task)]
        parts += [_seconds(figures, task)] if figures.networks(task) else []
        parts += [_losses(figures, task), _long(figures, task), _searches(figures, task), _trainings(figures, task)]
    parts += [_claims(figures), _bounds(figures), _local(figures), _chosen(figures)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n\n" + HOW.format(every=EVERY)


def _claims(figures: Figures) -> str:
    """Return what papers claim next to what was found."""
    rows = []
    for method, claim in CLAIMS.items():
        found = [_above_dense(figures, task, method) for task in figures.tasks]
        if any(found):
            rows.append([METHODS[method].label, claim, *found])
    if not rows:
        return ""
    head = ["method", "claim", *(TASKS[task].label.partition(",")[0] for task in figures.tasks)]
    return CLAIMED.format(steps=STEPS, close=CLOSE, early=EARLY) + "\n" + table(head, rows, words=len(head))


def _above_dense(figures: Figures, task: str, method: str) -> str:
    """Return by how much a method's last loss is above dense's, and what that means; nothing if it was not trained."""
    if METHODS[method].trained_as not in figures.curves(task):
        return ""
    dense = {seed: dict(losses) for seed, losses in figures.losses(task, BASELINE).items()}
    own = {seed: dict(losses) for seed, losses in figures.losses(task, METHODS[method].trained_as).items()}
    above = fmean(own[seed][STEPS] - dense[seed][STEPS] for seed in own)
    late = fmean(own[seed][STEPS] - dense[seed][EARLY] for seed in own)
    words = "as dense" if above <= CLOSE else "does not converge" if late > 0 else "behind"
    return f"{above:+.3f}, {words}"


def _bounds(figures: Figures) -> str:
    """Return how soon `int4()` reaches dense's last loss next to what was to be reached."""
    rows = []
    for network, bounds in BOUNDS.items():
        for rival, bound in bounds.items():
            if {"int4", rival} <= set(figures.methods(BOUNDED, network)):
                found = figures.time_ratio(BOUNDED, network, "int4", STEPS, rival)
                said = "met" if found.value <= bound else "missed"
                said += "" if found.high <= bound or found.low > bound else ", within the interval"
                rows.append([METHODS[rival].label, NETWORKS[network].label, _interval(found), f"{bound:.2f}", said])
    if not rows:
        return ""
    title = f"`int4()` of the transformer to dense's loss after {STEPS} steps, in units of a rival's time:\n\n"
    return "## Bounds\n\n" + title + table(["rival", "network", "int4 / rival", "at most", ""], rows, words=2)


def _local(figures: Figures) -> str:
    """Return the soonest of local steps, next to what was to be reached, and to the nearest rival."""
    rows = []
    for network in figures.networks(BOUNDED):
        reached = [
            name
            for name in figures.methods(BOUNDED, network)
            if figures.steps(BOUNDED, figures.curve(name, network), STEPS).reached
        ]
        ours = [name for name in reached if METHODS[name].front_end == LOCAL]
        rivals = [name for name in reached if METHODS[name].is_rival or name == "demo"]
        if not ours or not rivals:
            continue

        def taken(name: str, network: str = network) -> float:
            return figures.seconds_to(BOUNDED, network, name, STEPS)

        best, rival = min(ours, key=taken), min(rivals, key=taken)
        found = figures.time_ratio(BOUNDED, network, best, STEPS)
        bound = LOCAL_BOUNDS.get(network)
        seeds = figures.steps(BOUNDED, best, STEPS).by_seed
        rows.append(
            [
                *(NETWORKS[network].label, METHODS[best].label, _interval(found), len(seeds)),
                *(("", "") if bound is None else (f"{bound:.2f}", _said(found, seeds, bound))),
                *(METHODS[rival].label, f"{taken(rival) / taken(best):.1f}"),
            ]
        )
    if not rows:
        return ""
    head = ["network", "soonest", "of Horovod dense", "seeds", "at most", "", "nearest other", "its time / ours"]
    return LOCAL_HEAD.format(steps=STEPS) + "\n" + table(head, rows, words=2)


def _said(found: Ratio, seeds: Sequence[float], bound: float) -> str:
    """Return whether a bound is met, and whether beyond what rounds and seeds differ by."""
    if found.value > bound:
        return "missed" if found.low > bound else "missed, within the interval"
    if len(seeds) < 2:
        return "met by one seed"
    spread = found.value * stdev(seeds) / fmean(seeds)
    is_clear = found.high <= bound and (bound - found.value) * math.sqrt(len(seeds)) >= spread
    return "met" if is_clear else "met, within the interval"


def _chosen(figures: Figures) -> str:
    """Return the steps between exchanges that every="auto" takes, by its own arithmetic, next to the best that was
    tried."""
    rows = []
    for network in figures.networks(BOUNDED):
        tried = {
            METHODS[name].turn: figures.seconds_to(BOUNDED, network, name, STEPS)
            for name in figures.methods(BOUNDED, network)
            if name in {f"local{every}" for every in COUNTS} | {"int4"}
            and figures.steps(BOUNDED, figures.curve(name, network), STEPS).reached
        }
        if len(tried) < MOST_TRIED or "alone" not in figures.timed(BOUNDED, network):
            continue
        step_s = figures.step_s(BOUNDED, network, "alone")
        few = min(every for every in tried if every > 1)
        exchange_s = (figures.step_s(BOUNDED, network, f"local{few}") - step_s) * few
        found = LocalStepsCost(step_s, exchange_s, COSINE, RANKS)
        chosen, best = min(tried, key=found.cost), min(tried, key=tried.__getitem__)
        rows.append([NETWORKS[network].label, step_s, exchange_s, chosen, best, tried[chosen] / tried[best]])
    if not rows:
        return ""
    cells = [[label, *(f"{each:.3g}" for each in numbers)] for label, *numbers in rows]
    head = ["network", "a step, s", "an exchange, s", "steps it takes", "best of those tried", "seconds of that"]
    return AUTO.format(cosine=COSINE) + "\n" + table(head, cells)


def _machine(about: dict[str, Any]) -> str:
    return (
        f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, torch {about['torch']}, commit "
        f"{about['commit']}"
    )


def _about(figures: Figures, task: str) -> str:
    seeds = figures.seeds[task]
    return f"{figures.kept['parameters'][task]:,} parameters, {TASKS[task].setting}; {seeds} seed{'s' * (seeds > 1)}."


def _headline(figures: Figures, task: str, goal: int) -> str:
    networks, head = figures.networks(task), ["method"]
    for network in networks:
        head += [f"{NETWORKS[network].label}: s", "of Horovod dense"]

    def cells(method: str, network: str) -> list[str]:
        if method not in figures.methods(task, network):
            return ["", ""]
        more = "" if figures.steps(task, figures.curve(method, network), goal).reached else "> "
        ratio = "1" if method == REFERENCE else _interval(figures.time_ratio(task, network, method, goal))
        return [more + _digits(figures.seconds_to(task, network, method, goal)), more + ratio]

    rows = [
        [METHODS[method].label, *(cell for network in networks for cell in cells(method, network))]
        for method in METHODS
        if any(method in figures.methods(task, network) for network in networks)
    ]
    return f"Seconds to dense's loss after {goal} steps:\n\n" + table(head, rows)


def _seconds(figures: Figures, task: str) -> str:
    networks, head = figures.networks(task), ["method"]
    for network in networks:
        rounds = len(figures.kept["seconds"][task][network][REFERENCE])
        head += [f"{NETWORKS[network].label}: ms", f"of Horovod dense, {rounds} rounds"]

    def cells(method: str, network: str) -> list[str]:
        if method not in figures.timed(task, network):
            return ["", ""]
        ratio = "1" if method == REFERENCE else _interval(figures.step_ratio(task, network, method))
        return [f"{1e3 * figures.step_s(task, network, method):.0f}", ratio]

    rows = [
        [METHODS[method].label, *(cell for network in networks for cell in cells(method, network))]
        for method in METHODS
        if any(method in figures.timed(task, network) for network in networks)
    ]
    return "Milliseconds a step:\n\n" + table(head, rows)


def _losses(figures: Figures, task: str) -> str:
    against = f"against dense after {STEPS}"
    head = ["method", "seeds", *(f"loss after {n}" for n in SHOWN), against]
    head += [f"steps to dense's after {goal}" for goal in GOALS]
    dense, rows = figures.losses(task, BASELINE), []
    for curve in figures.curves(task):
        by_seed = {seed: dict(losses) for seed, losses in figures.losses(task, curve).items()}
        losses = [_spread([of_seed[steps] for of_seed in by_seed.values()]) for steps in SHOWN]
        above = [of_seed[STEPS] - dict(dense[seed])[STEPS] for seed, of_seed in by_seed.items()]
        steps = [_steps(figures.steps(task, curve, goal)) for goal in GOALS]
        rows.append([_called(curve), len(by_seed), *losses, _spread(above, "+.3f"), *steps])
    title = "Validation loss in nats, and steps, the mean over seeds, in brackets the least and the largest:\n\n"
    return title + table(head, rows)


def _long(figures: Figures, task: str) -> str:
    """Return the losses of long trainings."""
    kept = figures.kept.get("long", {}).get(task, {})
    rows, at = [], [LONG // 4 * quarter // LONG_EVERY - 1 for quarter in range(1, 5)]
    for curve, by_seed in kept.items():
        losses = [_spread([own[place] for own in by_seed.values()]) for place in at]
        above = [own[at[-1]] - kept[BASELINE][seed][at[-1]] for seed, own in by_seed.items()]
        rows.append([_called(curve), len(by_seed), *losses, _spread(above, "+.3f")])
    if not rows:
        return ""
    head = [
        "method",
        "seeds",
        *(f"loss after {LONG_EVERY * (place + 1):,}" for place in at),
        f"against dense after {LONG:,}",
    ]
    return "Long trainings, validation loss in nats:\n\n" + table(head, rows)


def _searches(figures: Figures, task: str) -> str:
    found = figures.kept["searches"].get(task, {})
    rows = [
        [METHODS[method].label, NETWORKS[network].label, "; ".join(each["chosen"]), each["steps"], each["seconds"]]
        for network, by_method in found.items()
        for method, each in by_method.items()
    ]
    if not rows:
        return ""
    return "What was chosen:\n\n" + table(["method", "network", "choice", "after steps", "s"], rows, words=3)


def _trainings(figures: Figures, task: str) -> str:
    """Return what was trained from start to end next to what the product of both halves says."""
    rows = []
    for network, by_method in figures.kept["trainings"].get(task, {}).items():
        for method, found in by_method.items():
            if METHODS[method].searches:
                rival = by_method.get(BESIDE[method])
                beside = f"{found['seconds'] / rival['seconds']:.2f}" if rival else ""
                cells = [f"{found['steps']:.0f}", _digits(found["seconds"]), "", "", "", beside]
                rows.append([METHODS[method].label, NETWORKS[network].label, *cells, "; ".join(found["chosen"])])
                continue
            cells = [f"{found['steps']:.0f}", _digits(found["seconds"]), "", "", ""]
            if method in figures.methods(task, network):
                steps = figures.steps(task, figures.curve(method, network), STEPS).by_seed[0]
                predicted = steps * figures.step_s(task, network, method)
                cells[2:] = [f"{steps:.0f}", _digits(predicted), f"{found['seconds'] / predicted:.2f}"]
            rows.append([METHODS[method].label, NETWORKS[network].label, *cells, "", ""])
    if not rows:
        return ""
    head = [
        "method",
        "network",
        "steps",
        "s",
        "steps of the first half",
        "s as a product",
        "trained / product",
        "of `int4()`'s, trained beside it",
        "chosen",
    ]
    return f"Trained in the lab from start to end, to dense's loss after {STEPS} steps, seed 1:\n\n" + table(
        head, rows, words=2
    )


def _called(curve: str) -> str:
    """Return the label of the method that is trained so."""
    if curve in METHODS:
        return {"dense": "dense", "fp16": "fp16"}.get(curve, METHODS[curve].label)
    method, _, network = curve.partition("-")
    return f"{METHODS[method].label}, {NETWORKS[network].label}"


def _spread(values: list[float], digits: str = ".3f") -> str:
    spread = f" ({min(values):{digits}} to {max(values):{digits}})" if len(set(values)) > 1 else ""
    return f"{fmean(values):{digits}}{spread}"


def _steps(found: Steps) -> str:
    spread = f" ({min(found.by_seed):.0f} to {max(found.by_seed):.0f})" if len(set(found.by_seed)) > 1 else ""
    return f"{'' if found.reached else '> '}{found.mean:.0f}{spread}"


def _interval(ratio: Ratio) -> str:
    return interval_cell(ratio.value, ratio.low, ratio.high)


def _digits(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"
