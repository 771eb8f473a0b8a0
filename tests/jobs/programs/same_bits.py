"""Trains README's convnet for some steps, and says the bits of its parameters.

usage: same_bits.py COMPRESSION ENGINE STEPS
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd
from examples.images.data import load_digits
from examples.images.model import SmallConvNet


def main(compression: str, engine: str, steps: int) -> None:
    hvd.init()
    Path(os.environ["JOB_FOLDER"], f"{hvd.rank()}.pid").write_text(str(os.getpid()))
    torch.manual_seed(0)
    model = SmallConvNet()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        model.named_parameters(),
        compression=getattr(hvd.Compression, compression)().by(engine=engine),
    )
    digits = load_digits().train
    order = torch.Generator().manual_seed(hvd.rank())
    for _ in range(steps):
        images, labels = digits.batch(torch.randint(len(digits), (32,), generator=order))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    print(f"[rank {hvd.rank()}] {digest.hexdigest()}", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
