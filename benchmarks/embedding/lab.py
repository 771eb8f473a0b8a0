r"""A step of DLRM by several ways to keep its embedding rows, over an emulated network.

    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- python -m benchmarks.embedding.lab
    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- \
        python -m benchmarks.embedding.lab --methods resident,L=1,L=5,L=10,L=50,L=100
    hvd-compress netlab run --hosts 4 --latency 5ms --bandwidth 100mbit -- \
        PYTHON -m benchmarks.embedding.lab --methods resident,sharded,L=50,torchrec,torchrec-pipelined

The small model on the generator with Criteo's tables and skew, in windows of steps, in turns, in one job. All methods
share the dense part, whose gradients travel by `--compression`. The floor is resident: each rank has the rows that it
uses, and nothing of them is synchronised. The peer is sharded: what TorchRec does. `torchrec` is TorchRec itself, and
`torchrec-pipelined` the same with its own pipeline: PYTHON is one that has both packages (`requirements/torchrec.txt`)
and an editable installation of this checkout.
Their bytes are not counted, and they are the last rows of the table.

Bytes are what this rank sends to others: critical, after a step, and ids told ahead. All bytes of a baseline are
critical, ids included.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")

import click
import torch
from recommendation.batch import Batch
from recommendation.models import MODELS
from recommendation.sizes import SMALL
from recommendation.synthetic import criteo_like
from torch.nn import functional

import hvd_compress.torch as hvd
from benchmarks.frame.circumstances import circumstances, told
from benchmarks.frame.page import head, ratio_cell, row
from benchmarks.frame.ranks import connect, rank, say
from benchmarks.frame.store import BUILD, append
from benchmarks.frame.turns import WARM_UP, in_turns
from hvd_compress.embedding import CachedEmbedding, Lookahead, RowwiseAdagrad, Rules
from hvd_compress.embedding.baselines import Baseline, ReplicatedTable, Resident, RowSharded
from hvd_compress.embedding.group import connect as connect_engine
from hvd_compress.engines.base import Engine

BASELINES: dict[str, type[Baseline]] = {
    "resident": Resident,
    "sharded": RowSharded,
    "replicated-table": ReplicatedTable,
}
RULES = {"replicated-cache": Rules(delayed=False, replicated=True), "not-delayed": Rules(delayed=False)}
PEERS = ("torchrec", "torchrec-pipelined")
PERIOD = 128
"""Batches that are drawn before, and used in turns."""
FIRST_STEPS = 10
UNCOUNTED = FIRST_STEPS + WARM_UP
"""Steps of warm_up() and of in_turns() before those that count."""
TITLES = (
    *("rows by", "step, ms", "of resident (95 %)", "of sharded (95 %)", "waited, ms", "critical, later, ids, ms"),
    *("critical, kB", "behind, kB", "ids, kB"),
)


class Training:
    """This rank's part of a training, with one way to keep rows."""

    def __init__(
        self, method: str, batches: list[Batch], dense: Dense, tables: tuple[int, ...], cache_rows: int
    ) -> None:
        self.method, self.dense = method, dense
        self.embedding = CachedEmbedding(tables, 16, optimizer=RowwiseAdagrad(0.05), name=method)
        endless = itertools.cycle(batches)
        self.engine: Engine | None = None
        self.loader: Any
        if method in BASELINES:
            self.engine = connect_engine("auto")
            self.engine.locate()
            self.loader = BASELINES[method](endless, {2: self.embedding}, self.engine)
        else:
            name, _, precision = method.partition(":")  # such as L=50:int8
            ahead = int(name.removeprefix("L=")) if name.startswith("L=") else 50
            self.loader = Lookahead(
                endless,
                {2: self.embedding},
                cache_rows=cache_rows,
                lookahead=ahead,
                rules=RULES.get(name, Rules()),
                sync_precision=precision or "exact",
            )
        self.batches: Iterator[Batch] = iter(self.loader)
        self.critical: list[int] = []
        self.behind: list[int] = []
        self.ids: list[int] = []
        self.waited_s: list[float] = []
        self.lanes_s: list[tuple[float, float, float]] = []

    def step(self) -> None:
        start_s = time.perf_counter()
        batch = next(self.batches)
        self.waited_s.append(time.perf_counter() - start_s)
        if self.engine is None:
            moved = self.loader.moved
            self._record(moved.critical_bytes, moved.later_bytes, moved.told_bytes)
            self.lanes_s.append((moved.critical_s, moved.later_s, moved.told_s))
        self.dense.step(batch, self.embedding)
        if self.engine is not None:
            self._record(sum(call.sent_bytes for call in self.engine.take_calls()), 0, 0)
            self.lanes_s.append((0.0, 0.0, 0.0))

    def _record(self, critical_bytes: int, behind_bytes: int, ids_bytes: int) -> None:
        self.critical.append(critical_bytes)
        self.behind.append(behind_bytes)
        self.ids.append(ids_bytes)


class PeerTraining:
    """This rank's part of a training by TorchRec, whose bytes and waits are not counted."""

    critical = behind = ids = waited_s = lanes_s = ()

    def __init__(
        self, method: str, batches: list[Batch], dense: Dense, tables: tuple[int, ...], torchrec_rows: ModuleType
    ) -> None:
        self.method = method
        rows, endless = torchrec_rows.TorchRecRows(tables, 16, 0.05), itertools.cycle(batches)
        if method == "torchrec":
            self.step = lambda: dense.step(next(endless), rows)
        else:
            self.step = torchrec_rows.pipelined(rows, dense.model, dense.optimizer, endless)


class Dense:
    """The model without embeddings, and its optimizer."""

    def __init__(self, compression: str) -> None:
        torch.manual_seed(1)
        self.model = MODELS["dlrm"](SMALL["dlrm"])
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.01),
            named_parameters=self.model.named_parameters(),
            compression=getattr(hvd.Compression, compression)(),
        )

    def step(self, batch: Batch, embedding: torch.nn.Module) -> None:
        self.optimizer.zero_grad()
        logits = self.model(batch.dense, embedding(batch.ids))
        functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
        self.optimizer.step()


def import_torchrec_rows() -> ModuleType:
    """Raises click.UsageError where TorchRec cannot be imported."""
    try:
        import_module("torchrec")
    except Exception as error:  # a broken installation raises anything
        raise click.UsageError(
            f"the methods {' and '.join(PEERS)} need TorchRec, which cannot be imported ({type(error).__name__}: "
            f"{error}): pip install --no-deps -r requirements/torchrec.txt"
        ) from error
    return import_module("benchmarks.embedding.torchrec_rows")


def warm_up(trainings: Sequence[Training | PeerTraining]) -> None:
    for training in trainings:
        for _ in range(FIRST_STEPS):
            training.step()


@click.command(help=__doc__)
@click.option(
    "--methods", default="resident,sharded,L=50,not-delayed,replicated-cache,replicated-table", show_default=True
)
@click.option("--batch-size", default=128, show_default=True, help="Of a rank.")
@click.option("--scale", default=0.03, show_default=True, help="Of the tables' rows.")
@click.option("--cache-rows", default=400_000, show_default=True)
@click.option("--compression", default="int8", show_default=True, help="Of the dense part.")
@click.option("--rounds", default=8, show_default=True)
@click.option("--window", default=8, show_default=True, help="Steps.")
def main(
    methods: str, batch_size: int, scale: float, cache_rows: int, compression: str, rounds: int, window: int
) -> None:
    names = sorted(methods.split(","), key=PEERS.__contains__)
    torchrec_rows = import_torchrec_rows() if names[-1] in PEERS else None
    hvd.init()
    torch.set_num_threads(1)
    source = criteo_like(scale, batch_size=batch_size, steps=PERIOD, rank=hvd.rank(), world_size=hvd.size())
    batches = list(source)
    dense = Dense(compression)
    trainings = [Training(name, batches, dense, source.tables, cache_rows) for name in names if name not in PEERS]
    warm_up(trainings)
    if torchrec_rows is not None:
        # Not before: a Lookahead that begins takes the engine of torch.distributed where that is initialised.
        connect()
        peers = [PeerTraining(name, batches, dense, source.tables, torchrec_rows) for name in names if name in PEERS]
        warm_up(peers)
        trainings += peers
    taken = in_turns([training.step for training in trainings], rounds, window)
    parameters = sum(each.numel() for each in dense.model.parameters())
    about = f"{hvd.size()} ranks, {batch_size} examples each, {parameters} dense parameters by {compression}"
    if rank() == 0:
        figures = {"about": about, "scale": scale, "cache_rows": cache_rows, "methods": names, "rounds": taken}
        append(BUILD / "embedding" / "lab.jsonl", {**figures, "circumstances": circumstances()})
        say(f"{told()}\n{about}\n")
    say(head(TITLES))
    places = [names.index(name) if name in names else None for name in ("resident", "sharded")]
    for place, training in enumerate(trainings):
        ratios = ["" if peer is None else ratio_cell([each[place] / each[peer] for each in taken]) for peer in places]
        step_s = statistics.median(each[place] for each in taken)
        say(row([training.method, f"{1e3 * step_s:.1f}", *ratios, *moved_cells(training)]))


def moved_cells(training: Training | PeerTraining) -> list[str]:
    """Return what a step waited for rows, what its lanes took, and the bytes of each, as medians; "-" if unknown."""
    waited = f"{1e3 * statistics.median(training.waited_s[UNCOUNTED:]):.1f}" if training.waited_s else "-"
    lanes = zip(*training.lanes_s[UNCOUNTED:], strict=True)
    seconds = ", ".join(f"{1e3 * statistics.median(lane):.1f}" for lane in lanes)
    sent = training.critical, training.behind, training.ids
    return [waited, seconds or "-", *(f"{1e-3 * statistics.median(s[UNCOUNTED:]):.0f}" if s else "-" for s in sent)]


if __name__ == "__main__":
    main()
