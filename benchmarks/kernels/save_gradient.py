"""Save a real gradient: that of the example's net after some steps, for `hvd-compress bench kernels --gradients FILE`.

python benchmarks/kernels/save_gradient.py FILE
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from images.data import load_images
from images.model import SmallConvNet


@click.command(help=__doc__)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--steps", default=100, show_default=True, type=click.IntRange(min=0))
def main(file: Path, steps: int) -> None:
    torch.manual_seed(0)
    data, model = load_images(), SmallConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(steps + 1):
        images, labels = data.train.batch(torch.randint(len(data.train), (64,)))
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    torch.save(gradient, file)
    click.echo(
        f"{gradient.numel()} elements after {steps} steps on {data.name}, {int((gradient == 0).sum())} of them 0"
    )


if __name__ == "__main__":
    main()
