"""DDP with CUDA tensors, two ranks sharing the GPU: reduced gradients next to the CPU's, and times of steps.

A job of front_ends.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.frame.page import ratio_cell
from benchmarks.frame.ranks import from_rank_0
from benchmarks.frame.turns import rounds, window
from benchmarks.gpu.agreement import faults_of_all, not_finite, ranks_equal, same_bytes

OWNERS = "alltoall-allgather"
COMPRESSIONS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda c: c.dense(),
    "int8": lambda c: c.int8(),
    f"int8 by {OWNERS}": lambda c: c.int8().by(collective=OWNERS),
    "int4": lambda c: c.int4(),
    f"int4 by {OWNERS}": lambda c: c.int4().by(collective=OWNERS),
    "topk": lambda c: c.topk(0.01).by(collective="allgather"),  # otherwise chosen by times
    "auto": lambda c: c.auto(),
}
ROUNDS, TIMED_S = 15, 20
"""Of DDP's steps: the most rounds, and the seconds after which there are fewer."""
WARM_UP, CHOOSING = 3, 40
"""Steps before those that are timed; auto() chooses in the first of them."""
Found = Iterator[tuple[str, Any]]
"""What a job finds, by name. It is written at once: what was found before a hang or a failure is not lost."""


def how(model: nn.Module) -> dict[str, list[str]]:
    """Return by which collectives buckets travelled and where they were compressed, each once."""
    import hvd_compress.ddp as hc

    decisions = hc.of(model).decisions.values()
    return {
        "collective": sorted({f"{each.compressor} by {each.path}" for each in decisions}),
        "device": sorted({each.device for each in decisions}),
    }


def ddp(device: torch.device, width: int) -> Found:
    import hvd_compress.ddp as hc

    yield "card", torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    yield "torch", torch.__version__
    faults: list[str] = []
    travelled: dict[str, Any] = {}
    for name, request in COMPRESSIONS.items():
        if name == "auto":  # it chooses by times
            continue
        (ours, by), (theirs, peer) = (_reduced(at, request(hc.Compression)) for at in (device, torch.device("cpu")))
        travelled[name] = {"device": by, "CPU": peer}
        for step, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            if by["collective"] == peer["collective"] and not same_bytes(own, other):
                faults.append(f"{name}: step {step} differs from the CPU's")
            faults += not_finite(f"{name}: step {step}", own)
            faults += [] if ranks_equal(own) else [f"{name}: step {step} differs between ranks"]
        if by["device"] != [device.type]:
            faults.append(f"{name}: compressed on {by['device']}")
        yield "faults", faults_of_all(faults)
        yield "compared", travelled
    trainings = {name: Training(device, width, name) for name in ("alone", "plain", "fp16 hook", *COMPRESSIONS)}
    taken = _timed(trainings)
    for name, training in trainings.items():
        if name in COMPRESSIONS:
            faults += not_finite(f"{name}, trained", training.values)
            faults += [] if ranks_equal(training.values) else [f"{name}: replicas differ"]
    yield "faults", faults_of_all(faults)
    yield "rounds", len(taken["alone"])
    compute_ms = _median_ms(taken["alone"])
    figures = {}
    for name, training in trainings.items():
        if name == "alone":
            continue
        step_ms, exchange_ms = _median_ms(taken[name]), _median_ms(taken[f"{name}, exchange"])
        figures[name] = {
            "step_ms": step_ms,
            "of plain (95 %)": ratio_cell([a / b for a, b in zip(taken[name], taken["plain"], strict=True)]),
            "exchange_ms": exchange_ms,
            "compute_ms": compute_ms,
            # The share of the exchange, or of the computation where that is shorter, that the other one covered.
            "hidden": (compute_ms + exchange_ms - step_ms) / min(compute_ms, exchange_ms),
        }
        if name in COMPRESSIONS:
            figures[name] |= {"sent_bytes": hc.of(training.model).last_step.sent_bytes, **how(training.model)}
            if name == "auto":
                figures[name]["chosen"] = sorted({each.reason for each in hc.of(training.model).decisions.values()})
    yield "figures", figures


class _Given(nn.Module):
    """Parameters whose gradients are what forward() is given."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(333_333,), (7, 47_619), (1,), (333_335,)]
        self.all = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, given: list[torch.Tensor]) -> torch.Tensor:
        return sum(((p * g).sum() for p, g in zip(self.all, given, strict=True)), torch.zeros(()))


def _reduced(device: torch.device, request: Any) -> tuple[list[torch.Tensor], dict[str, list[str]]]:
    """Return the reduced gradients of four steps, the same given on every device, and how they were reduced."""
    import hvd_compress.ddp as hc

    model = DistributedDataParallel(_Given().to(device), bucket_cap_mb=1)
    hc.compress(model, request)
    found = []
    for step in range(4):
        draw = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
        given = [torch.randn(p.shape, generator=draw).to(device) for p in model.module.all]
        model.zero_grad()
        model(given).backward()
        found.append(torch.cat([p.grad.reshape(-1).cpu() for p in model.module.all]))
    return found, how(model)


class Training:
    """Square layers that are trained by one method; "alone" without exchange."""

    def __init__(self, device: torch.device, width: int, name: str) -> None:
        import hvd_compress.ddp as hc

        torch.manual_seed(1)
        self._device = device
        self.model: Any = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(6))).to(device)
        if name != "alone":
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=4 * width * width / 2**20)
        if name in COMPRESSIONS:
            hc.compress(self.model, COMPRESSIONS[name](hc.Compression))
        elif name == "fp16 hook":
            self.model.register_comm_hook(None, fp16_compress_hook)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        torch.manual_seed(2 + dist.get_rank())
        self._batch = torch.randn(2 * width, width, device=device)

    def step(self, examples: int | None = None) -> None:
        self._optimizer.zero_grad(set_to_none=False)
        self.model(self._batch[:examples]).square().mean().backward()
        self._optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def exchange(self) -> None:
        """Take a step that computes next to nothing."""
        self.step(1)

    @property
    def values(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).cpu() for p in self.model.parameters()])


def _timed(trainings: dict[str, Training]) -> dict[str, list[float]]:
    """Return the slower rank's seconds in each round, of steps and of exchanges."""
    kinds: dict[str, Callable[[], None]] = {name: training.step for name, training in trainings.items()}
    kinds |= {f"{name}, exchange": training.exchange for name, training in trainings.items() if name != "alone"}
    for name, step in kinds.items():
        window(step, CHOOSING if name == "auto" else WARM_UP)
    begun_s, rows = time.perf_counter(), []
    for number, row in zip(count(1), rounds(list(kinds.values()), 1)):
        rows.append(row)
        if number == ROUNDS or from_rank_0(time.perf_counter() - begun_s) > TIMED_S:
            break
    return {name: list(column) for name, column in zip(kinds, zip(*rows, strict=True), strict=True)}


def _median_ms(seconds: Iterable[float]) -> float:
    return 1e3 * torch.tensor(list(seconds)).median().item()
