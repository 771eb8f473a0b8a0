"""Predicted beside measured seconds of a step: eight plans on four emulated hosts (root).

    python benchmarks/planner/lab.py measure     (40 minutes on 2 cores; each call adds rounds)
    python benchmarks/planner/lab.py terms       (traces our plan on all ranks)
    python benchmarks/planner/lab.py page

For each job and network: a profile is recorded in the lab, plans are made of it, and all take windows of steps in turns
within one job. What was found is kept in build/planner_lab.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

import click
from lab_plans import OURS, plans_of
from lab_terms import compared, waited_ms
from turns import median_with_interval

from hvd_compress.bench.machine import machine
from hvd_compress.netlab import Lab
from hvd_compress.planner.making import NAMES, Inputs

ROOT = Path(__file__).resolve().parents[2]
RANKS = 4
BUILD = ROOT / "build" / "planner_lab"
RESULT = ROOT / "benchmarks" / "results" / "planner-lab.md"
TRACE = ROOT.parent / "shared" / "data" / "traces" / "resnet50.json"
PLANS, WITHIN, FASTEST = 8, 0.15, 1.05
"""Of the issue: the median error of a prediction, and what our plan may take in units of the fastest measured one."""


@dataclass(frozen=True)
class Job:
    """What is trained, with what compressor, on which networks (latency, bandwidth).

    Attributes:
        skip, steps: of the profile.
        window: steps of a window.
    """

    label: str
    compressor: str
    networks: tuple[tuple[str, str], ...]
    skip: int
    steps: int
    window: int


JOBS = {
    "example": Job(
        "the example's convolutional net, 1.2 M parameters", "topk:ratio=0.01",
        (("5ms", "100mbit"), ("1ms", "1gbit")), 5, 60, 4,
    ),
    "resnet50": Job(
        "ResNet-50's shapes and V100 times, asleep, 25.6 M parameters", "topk:ratio=0.01",
        (("5ms", "200mbit"), ("1ms", "1gbit")), 3, 20, 2,
    ),
}  # fmt: skip


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@click.option("--jobs", default=",".join(JOBS), show_default=True)
@click.option("--rounds", default=6, show_default=True, help="Windows of each plan.")
@click.option("--again", is_flag=True, help="Profile and plan anew.")
def measure(jobs: str, rounds: int, again: bool) -> None:
    """Profile, plan, and measure all plans in turns."""
    for name in jobs.split(","):
        for latency, bandwidth in JOBS[name].networks:
            folder = _folder(name, latency, bandwidth)
            if again:
                shutil.rmtree(folder, ignore_errors=True)
            if not (folder / "predicted.json").exists():
                click.echo(f"{name}, {bandwidth}, {latency}: profile")
                _profile(name, latency, bandwidth, folder)
                _plan(folder)
            click.echo(f"{name}, {bandwidth}, {latency}: {rounds} rounds")
            _run({"do": "windows", "job": name, "folder": str(folder), "rounds": rounds}, latency, bandwidth)


def _profile(name: str, latency: str, bandwidth: str, folder: Path) -> None:
    job = JOBS[name]
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"": folder, "_SKIP": job.skip, "_STEPS": job.steps, "_COMPRESSOR": job.compressor}
    variables = {f"HVD_COMPRESS_PROFILE{key}": str(value) for key, value in settings.items()}
    _run({"do": "profile", "job": name, "steps": job.skip + job.steps + 1}, latency, bandwidth, variables)


def _plan(folder: Path) -> None:
    """Write a file for each plan, and what they are predicted to take."""
    inputs = Inputs.read({name: folder / file for name, file in NAMES.items()})
    predicted = {}
    for name, (plan, step_us) in plans_of(inputs).items():
        plan.write(folder / f"plan-{name}.json")
        predicted[name] = step_us * 1e-6
        click.echo(f"  {name}: {1e-3 * step_us:.1f} ms, {len(plan.buckets)} buckets")
    (folder / "predicted.json").write_text(json.dumps({"machine": machine(), "seconds": predicted}))


def _run(wanted: dict[str, Any], latency: str, bandwidth: str, variables: dict[str, str] | None = None) -> None:
    program = Path(__file__).with_name("lab_job.py")
    job = {**wanted, "trace": str(TRACE), "window": JOBS[wanted["job"]].window}
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "HVD_COMPRESS_NUM_THREADS": "1",
        "HVD_COMPRESS_CACHE": str(BUILD / "cache"),
        **(variables or {}),
    }
    environment["LD_PRELOAD"] = str(_sleeping_yield())
    with Lab(RANKS, latency, bandwidth, name="planner") as lab:
        status = lab.run([sys.executable, str(program), json.dumps(job)], env=environment).returncode
    if status != 0:
        raise click.ClickException(f"exit status {status} of lab_job.py {json.dumps(job)}")


def _sleeping_yield() -> Path:
    """Compile what keeps ranks that wait from taking a processor from the others."""
    built = BUILD / "sleeping_yield.so"
    source = Path(__file__).with_name("sleeping_yield.c")
    if not built.exists() or built.stat().st_mtime < source.stat().st_mtime:
        built.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", built, source], check=True)
    return built


@main.command()
@click.option("--job", "name", type=click.Choice(list(JOBS)), default="resnet50", show_default=True)
@click.option("--network", type=click.IntRange(0, 1), default=1, show_default=True, help="Of the job's two.")
def terms(name: str, network: int) -> None:
    """Trace our plan on all ranks, and keep what of it took longer than predicted."""
    latency, bandwidth = JOBS[name].networks[network]
    folder = _folder(name, latency, bandwidth)
    variables = {"HVD_COMPRESS_TIMELINE": str(folder / "timeline-{rank}.json"), "HVD_COMPRESS_TIMELINE_EVERY": "1"}
    wanted = {"do": "windows", "job": name, "folder": str(folder), "rounds": 5, "plans": [OURS], "keep": "traced.jsonl"}
    _run(wanted, latency, bandwidth, variables)
    timelines = [folder / f"timeline-{rank}.json" for rank in range(RANKS)]
    first, alone = waited_ms(timelines)
    text = compared(folder / f"plan-{OURS}.json", timelines[0], folder)
    found = {"label": JOBS[name].label, "bandwidth": bandwidth, "compared": text, "first": first, "alone": alone}
    found["busy"] = json.loads((folder / "busy.json").read_text())
    (BUILD / "terms.json").write_text(json.dumps(found))
    click.echo(TERMS.format(**found))


@main.command()
def page() -> None:
    """Write benchmarks/results/planner-lab.md of what was measured."""
    found = [_section(name, *network) for name in JOBS for network in JOBS[name].networks if _rounds(name, *network)]
    if not found:
        raise click.ClickException(f"nothing has been measured in {BUILD}: run `lab.py measure`")
    about = next(json.loads(file.read_text())["machine"] for file in sorted(BUILD.glob("*/predicted.json")))
    medians = [statistics.median(errors) for _, errors, _ in found]
    slow = [ratio for _, _, ratio in found]
    said = [
        _row(
            f"median over {PLANS} plans of a prediction's error: at most {WITHIN:.0%}",
            [f"{median:.0%}" for median in medians],
            all(median <= WITHIN for median in medians),
        ),
        _row(
            f"our plan beside the fastest measured: at most {FASTEST:.2f}",
            [f"{ratio:.2f}" for ratio in slow],
            all(ratio <= FASTEST for ratio in slow),
        ),
    ]
    head = HEAD.format(ranks=RANKS, about=about)
    table = "\n".join(["| asked | found, in the order below | |", "| --- | --- | --- |", *said])
    RESULT.write_text(head + table + "\n" + "".join(section for section, _, _ in found) + _terms())
    click.echo(f"wrote {RESULT}")


HEAD = """\
# Predicted and measured steps

Take from here how far a prediction of `hvd-compress plan make` can be trusted. {ranks} hosts of one rank each on one
machine of 2 cores ([the lab](../../docs/netlab.md)); each plan trains a model of its own, windows in turns within one
job, of the slowest rank.

    python benchmarks/planner/lab.py measure     # as root
    python benchmarks/planner/lab.py terms
    python benchmarks/planner/lab.py page

{about}; one thread a rank.
A rank that waits sleeps 0.1 ms between two polls (sleeping_yield.c), as polling would take the processors from ranks of
other hosts. ResNet-50 is asleep for its backward pass and has no update.

"""
TERMS = """
## Which term is wrong

Our plan for {label} at {bandwidth}, traced on all ranks; `hvd-compress plan compare` of rank 0:

```
{compared}
```

A collective's time holds the waiting for the rank that comes last. Of that rank all collectives of a step take
{alone:.0f} ms, of rank 0 {first:.0f} ms: the difference is waiting.

Four ranks share two cores, and at {bandwidth} these are busy for {busy:.0%} of the windows. In the timeline each rank
has a device that computes and compresses, and a network that takes nothing of it; here the ranks and the copies of TCP
take turns. That is what a prediction misses, and the more of a step is work of the CPU, the more. What hosts of their
own would do was not measured.
"""


def _terms() -> str:
    file = BUILD / "terms.json"
    if not file.exists():
        raise click.ClickException(f"{file} is missing: run `lab.py terms`")
    return TERMS.format(**json.loads(file.read_text()))


def _section(name: str, latency: str, bandwidth: str) -> tuple[str, list[float], float]:
    """Return the section of a job on a network, the relative errors, and ours in units of the fastest."""
    folder, rounds = _folder(name, latency, bandwidth), _rounds(name, latency, bandwidth)
    predicted = json.loads((folder / "predicted.json").read_text())["seconds"]
    median = {plan: statistics.median(each[plan] for each in rounds) for plan in predicted}
    fastest = min(median, key=median.__getitem__)
    errors = [abs(predicted[plan] / median[plan] - 1) for plan in predicted]
    rows = [
        "| plan | buckets | predicted, ms | measured, ms | 95 % interval | predicted / measured |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for plan in predicted:
        value, low, high = median_with_interval([each[plan] for each in rounds])
        buckets = len(json.loads((folder / f"plan-{plan}.json").read_text())["buckets"])
        measured = [f"{1e3 * each:.1f}" for each in (value, low, high)]
        cells = [plan, str(buckets), f"{1e3 * predicted[plan]:.1f}", measured[0], " to ".join(measured[1:])]
        rows.append(f"| {' | '.join(cells)} | {predicted[plan] / value:.2f} |")
    ratio, low, high = median_with_interval([each[OURS] / each[fastest] for each in rounds])
    title = f"\n## {JOBS[name].label}; {bandwidth}, {latency}\n\n"
    end = (
        f'\n\n{len(rounds)} rounds. The fastest measured is "{fastest}"; "{OURS}" takes {ratio:.2f} ({low:.2f} to '
        f"{high:.2f}) of it. Predictions are off by {statistics.median(errors):.0%} in the median, at most "
        f"{max(errors):.0%}.\n"
    )
    return title + "\n".join(rows) + end, errors, ratio


def _folder(name: str, latency: str, bandwidth: str) -> Path:
    return BUILD / f"{name}-{bandwidth}-{latency}"


def _rounds(name: str, latency: str, bandwidth: str) -> list[dict[str, float]]:
    """Return the seconds of a step by plan, of each round that was measured."""
    file = _folder(name, latency, bandwidth) / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _row(asked: str, found: list[str], is_met: bool) -> str:
    return f"| {asked} | {', '.join(found)} | {'met' if is_met else '**missed**'} |"


if __name__ == "__main__":
    main()
