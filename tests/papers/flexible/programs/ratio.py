"""Train with collective, algorithm and ratio left open, with gains read from curves, then by rollout."""

from __future__ import annotations

import os
from pathlib import Path

import torch

import hvd_compress.torch as hvd
import tests.jobs.programs.quick_start  # noqa: F401

STEPS = 25


class Inputs:
    """Random inputs, and the position among them."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(hvd.rank())

    def next(self) -> torch.Tensor:
        return torch.randn(4, 200, generator=self.generator)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


def main(gain: str) -> None:
    torch.manual_seed(1)
    model, inputs = torch.nn.Linear(200, 300), Inputs()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    compression = hvd.Compression.flexible(0.005, 0.5, gain=gain)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), compression)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs.next()).square().sum().backward()
        optimizer.step()

    rolled_out = 0
    for _ in range(STEPS):
        step()
        rolled_out += optimizer.rollout(step, model, inputs, steps=3)
    chosen = [event for event in hvd.of(optimizer).controller.history if event.kind == "ratio"]
    total = sum(float(parameter.detach().double().sum()) for parameter in model.parameters())
    print(f"[rank {hvd.rank()}] {gain}: {rolled_out} rollouts, {chosen[0].ratio:.4g}, ends at {total!r}", flush=True)


if __name__ == "__main__":
    hvd.init()
    Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
    for gain in ("curve", "rollout"):
        main(gain)
