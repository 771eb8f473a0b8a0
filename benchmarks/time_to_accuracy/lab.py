"""The second half: jobs on emulated networks, and where what they found is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.frame.lab import run
from benchmarks.time_to_accuracy.methods import METHODS
from benchmarks.time_to_accuracy.places import BUILD
from benchmarks.time_to_accuracy.tasks import RANKS

MOST_SEARCHED = 120
"""Steps after which a search that has not ended is taken as it is."""


@dataclass(frozen=True)
class Network:
    """Of all hosts.

    Attributes:
        slots: ranks on each host, which reach each other without the network.
        steps: of a window, more where a step is short.
        before: steps of a window before those, which do not count: while others had their turns, the memory of a model
            went out of the caches, or further. Where a step is long, that does not matter.
    """

    bandwidth: str
    latency: str
    label: str
    steps: int
    before: int
    slots: int = 1

    @property
    def lines(self) -> str:
        return f"{self.bandwidth}-{self.latency}"

    @property
    def name(self) -> str:
        return self.lines if self.slots == 1 else f"{self.lines}-{RANKS // self.slots}x{self.slots}"


NETWORKS = {
    network.name: network
    for network in (
        Network("1gbit", "1ms", "1 Gbit/s, 1 ms", 2, 1),
        Network("100mbit", "5ms", "100 Mbit/s, 5 ms", 2, 1),
        Network("20mbit", "20ms", "20 Mbit/s, 20 ms", 1, 0),
        Network("5mbit", "50ms", "5 Mbit/s, 50 ms", 1, 0),
        Network("20mbit", "20ms", "2 hosts of 2 ranks, 20 Mbit/s, 20 ms", 1, 0, slots=2),
    )
}


def plan_of(task: str, method: str, network: str) -> Path:
    """Return the file of what a method that searches has chosen on a network."""
    return BUILD / "plans" / task / f"{method}-{network}.json"


def rounds_of(task: str, network: str) -> Path:
    """Return the file with a line for each round of windows."""
    return BUILD / "seconds" / f"{task}-{network}.jsonl"


def searches_of(task: str, network: str) -> Path:
    """Return the file with a line for each search; the last one of a method counts."""
    return BUILD / "searches" / f"{task}-{network}.jsonl"


def trainings_of(task: str, network: str) -> Path:
    """Return the file with a line for each training from start to end; the last one of a method counts."""
    return BUILD / "trainings" / f"{task}-{network}.jsonl"


def measure(task: str, network: str, methods: Sequence[str], seconds: float, least: int) -> None:
    """Measure windows of these methods in turns. Those that search must have chosen before."""
    plans = {name: str(plan_of(task, name, network)) for name in methods if METHODS[name].searches}
    window = {"steps": NETWORKS[network].steps, "before": NETWORKS[network].before}
    words = {"seconds": seconds, "least": least, "plans": plans}
    _run("windows", task, network, methods, rounds_of(task, network), **window, **words)


def search(task: str, network: str, method: str) -> None:
    """Let a method choose, and keep its choice as a plan."""
    plan = str(plan_of(task, method, network))
    _run("search", task, network, [method], searches_of(task, network), plan=plan, most=MOST_SEARCHED)


def train(task: str, network: str, methods: Sequence[str], target: float, most: int) -> None:
    """Train from the start to a loss."""
    _run("train", task, network, methods, trainings_of(task, network), target=target, most=most)


def _run(do: str, task: str, network: str, methods: Sequence[str], file: Path, **words: Any) -> None:
    """Run a job on a lab of its own. Raises click.ClickException where a rank failed."""
    wanted = {"do": do, "task": task, "methods": list(methods), **words}
    found = NETWORKS[network]
    hosts = RANKS // found.slots
    run("benchmarks.time_to_accuracy.job", wanted, found.lines, file, hosts=hosts, slots=found.slots)
