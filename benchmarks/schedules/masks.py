r"""Which elements should a filter send together? Masks over the average gradient, in one process.

    python benchmarks/schedules/masks.py run,1 tensor,1 part,0 part,0,2

A variant is what is sent together, the coefficient of error feedback, and the learning rate over the task's. A filter
is linear: the average of ranks' residuals is the residual of the average, so one model and one residual give the losses
of ranks that exchange, in 90 s a variant on 2 cores.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "time_to_accuracy"))
from figures import STEPS
from tasks import RANKS, TASKS, Task

INTERVAL, RUN = 4, 64
WAYS = {
    "run": "a quarter of all elements, in the order of the backward pass",
    "tensor": "every fourth tensor",
    "part": "a quarter of each tensor",
    "block": f"every fourth run of {RUN} elements",
}


def turns(parameters: dict[str, torch.nn.Parameter], way: str) -> dict[str, torch.Tensor]:
    """Return of each element the number of its shard, 0 to INTERVAL - 1."""
    found, start, total = {}, 0, sum(p.numel() for p in parameters.values())
    for number, name in enumerate(reversed(parameters)):  # as in a backward pass
        numel = parameters[name].numel()
        places = torch.arange(start, start + numel)
        shards = {
            "run": places * INTERVAL // total,
            "tensor": torch.full_like(places, number % INTERVAL),
            "part": (places - start) * INTERVAL // numel,
            "block": places // RUN % INTERVAL,
        }[way]
        found[name], start = shards.view(parameters[name].shape), start + numel
    return found


def trained(task: Task, seed: int, way: str, coefficient: float, rate: float) -> list[float]:
    """Return the validation loss after every 40 steps."""
    torch.manual_seed(seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] *= rate
    parameters = dict(model.named_parameters())
    shards = turns(parameters, way)
    residuals = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    losses = []
    for step in range(STEPS):
        batches = [task.batch(seed, step, rank) for rank in range(RANKS)]
        inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))
        task.loss(model, (inputs, targets)).backward()
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            corrected = parameter.grad + coefficient * residuals[name]
            parameter.grad = torch.where((shards[name] + step) % INTERVAL == 0, corrected, 0.0)
            residuals[name] = corrected - parameter.grad
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 40 == 0:
            losses.append(task.validation_loss(model))
    return losses


@click.command(help=__doc__)
@click.option("--task", "task_name", type=click.Choice(list(TASKS)), default="language", show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.argument("variants", nargs=-1, required=True)
def main(task_name: str, seed: int, variants: tuple[str, ...]) -> None:
    print(f"{task_name}, seed {seed}: loss after steps", *range(40, STEPS + 1, 40), sep="\t", flush=True)
    for variant in variants:
        way, coefficient, rate = (*variant.split(","), "1")[:3]
        if way not in WAYS:
            raise click.UsageError(f"{way!r} is not one of {', '.join(WAYS)}")
        losses = trained(TASKS[task_name], seed, way, float(coefficient), float(rate))
        print(variant, *(f"{loss:.3f}" for loss in losses), sep="\t", flush=True)


if __name__ == "__main__":
    main()
