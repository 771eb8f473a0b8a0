"""README's own lines as they are printed, with a model of the dtype that is named; only the loop's body is filled in.

usage: readme.py DTYPE
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

import quick_start  # noqa: F401
import torch

README = Path(__file__).parents[3] / "README.md"
BODY = """
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
"""


def lines() -> str:
    """The first block of Python, up to its last line, which stands for the body of the loop."""
    (block, *_) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    lines, dots = block.rstrip().rsplit("\n", 1)
    assert dots.strip() == "...", f"README's example ends with {dots!r}"
    return lines + BODY


def main(dtype: torch.dtype) -> None:
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["HOROVOD_RANK"])
    torch.manual_seed(rank)  # what ranks have in common comes from rank 0
    model = torch.nn.Sequential(torch.nn.Linear(64, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10)).to(dtype)
    batches = [(torch.randn(8, 64, dtype=dtype), torch.randint(10, (8,))) for _ in range(12)]
    exec(lines(), {"model": model, "batches": batches})
    trained = torch.cat([parameter.detach().reshape(-1).double() for parameter in model.parameters()])
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    digest = hashlib.sha256(trained.numpy().tobytes()).hexdigest() if torch.isfinite(trained).all() else "not finite"
    print(f"[rank {rank}] trained to {digest}", flush=True)


if __name__ == "__main__":
    Path(os.environ["JOB_FOLDER"], f"{os.getpid()}.pid").write_text(str(os.getpid()))
    main(getattr(torch, sys.argv[1]))
