"""One rank of a job in the lab: trains while it is profiled, or windows of steps by each plan in turns.

What is to be done comes as JSON on the command line (lab.py). Rank 0 appends a line a round to rounds.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HVD_COMPRESS_TIMEOUT_S", "600")
sys.path += [str(Path(__file__).resolve().parents[2] / "examples"), str(Path(__file__).resolve().parents[1])]

import torch
from images.model import SmallConvNet
from torch import nn
from turns import in_turns

import hvd_compress.torch as hvd

Step = Callable[[], None]


class Asleep(torch.autograd.Function):
    """A layer whose backward pass takes so long, as on a device beside the CPU, and gives a gradient that is there."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        ctx.gradient, ctx.seconds = gradient, seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        time.sleep(ctx.seconds)
        return grads[0], ctx.gradient, None, None


class Synthetic(nn.Module):
    """Parameters of a trace, with its backward times. All ranks and replicas share one gradient a size."""

    def __init__(self, trace: str) -> None:
        super().__init__()
        tensors = json.loads(Path(trace).read_text())["tensors"]
        self.layers = nn.ParameterDict()
        self._seconds, self._names = [], []
        for number, tensor in enumerate(reversed(tensors)):
            name = f"{number:03}-{tensor['name']}".replace(".", "-")
            self.layers[name] = nn.Parameter(torch.zeros(tensor["numel"]))
            self._names.append(name)
            self._seconds.append(1e-6 * tensor["backward_us"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name, seconds in zip(self._names, self._seconds, strict=True):
            parameter = self.layers[name]
            x = Asleep.apply(x, parameter, gradient_of(parameter.numel()), seconds)
        return x


class NoUpdate(torch.optim.Optimizer):
    """An optimizer whose device is another one than the CPU, too."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None: ...


_gradients: dict[int, torch.Tensor] = {}


def gradient_of(numel: int) -> torch.Tensor:
    """Return a gradient with heavy tails, the same one each time."""
    if numel not in _gradients:
        generator = torch.Generator().manual_seed(numel + hvd.rank())
        normal = torch.randn(numel, generator=generator)
        _gradients[numel] = 1e-3 * normal * torch.randn(numel, generator=generator).exp_()
    return _gradients[numel]


def main() -> None:
    wanted = json.loads(sys.argv[1])
    hvd.init()
    torch.set_num_threads(1)
    {"profile": profile, "windows": windows}[wanted["do"]](wanted)
    hvd.shutdown()


def training(wanted: dict[str, Any], compression: Any) -> Step:
    """Return a step of a replica of its own."""
    torch.manual_seed(1)
    example = wanted["job"] == "example"
    model = SmallConvNet() if example else Synthetic(wanted["trace"])
    parameters = model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=0.02, momentum=0.9) if example else NoUpdate(parameters)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)
    generator = torch.Generator().manual_seed(hvd.rank())
    shape = (64, 1, 28, 28) if example else (1,)
    inputs, labels = torch.randn(shape, generator=generator), torch.randint(10, (64,), generator=generator)

    def step() -> None:
        optimizer.zero_grad()
        x = inputs if example else inputs.clone().requires_grad_()
        loss = nn.functional.cross_entropy(model(x), labels) if example else model(x).sum()
        loss.backward()
        optimizer.step()

    return step


def profile(wanted: dict[str, Any]) -> None:
    """Train as long as it takes; hvd_compress sees the variables by itself."""
    step = training(wanted, hvd.Compression.topk(0.01, "allgather"))
    for _ in range(wanted["steps"]):
        step()


def windows(wanted: dict[str, Any]) -> None:
    """Measure windows of all plans in turns."""
    folder = Path(wanted["folder"])
    names = wanted.get("plans") or list(json.loads((folder / "predicted.json").read_text())["seconds"])
    steps = [training(wanted, hvd.Compression.plan(folder / f"plan-{name}.json")) for name in names]
    before = _processor_seconds()
    rows = in_turns(steps, wanted["rounds"], wanted["window"], partial(slowest))
    if hvd.rank() == 0:
        idle, total = (after - earlier for after, earlier in zip(_processor_seconds(), before, strict=True))
        (folder / "busy.json").write_text(json.dumps(1 - idle / total))
        with (folder / wanted.get("keep", "rounds.jsonl")).open("a") as lines:
            for row in rows:
                lines.write(json.dumps(dict(zip(names, row, strict=True))) + "\n")


def _processor_seconds() -> tuple[float, float]:
    """Return for how long this machine's processors were idle, and how long they were there; in any unit."""
    spent = [float(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return spent[3] + spent[4], sum(spent)


def slowest(number: float) -> float:
    """Return the largest of all ranks' numbers."""
    return float(hvd.allgather(torch.tensor([number], dtype=torch.float64)).max())


if __name__ == "__main__":
    main()
