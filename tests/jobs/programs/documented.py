"""The blocks of Python on the pages that are of a kind, page by page, in one job: tests/unit/docs/blocks.py.

usage: documented.py KIND
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

if sys.argv[1] == "horovod":  # DDP uses what this leaves out
    import quick_start  # noqa: F401

import torch
from torch import distributed

from tests.unit.docs.blocks import PAGES, Before, Begin, Page


def begin(names: dict[str, Any]) -> None:
    """Give a block what a script has before: a small model, equal on ranks, an optimizer, batches, and a loss."""

    def forward() -> None:
        names["loss"] = torch.nn.functional.cross_entropy(names["model"](names["images"]), names["labels"])

    def train() -> None:
        names["optimizer"].zero_grad()
        forward()
        names["loss"].backward()
        names["optimizer"].step()
        forward()

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
    batches = [(torch.randn(8, 64), torch.randint(10, (8,))) for _ in range(3)]
    names.update(torch=torch, model=model, batches=batches, train=train)
    names["images"], names["labels"] = batches[0]
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    forward()


def begin_ddp(names: dict[str, Any]) -> None:
    if distributed.is_initialized():
        _leave_process_group()
    begin(names)


_stores: list[distributed.TCPStore] = []


def _leave_process_group() -> None:
    """Let the next process group have a store of its own: in torchrun's are addresses of this one."""
    if distributed.get_rank() == 0:
        _stores.append(distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False))
    port = [_stores[-1].port if _stores else None]
    distributed.broadcast_object_list(port)
    distributed.destroy_process_group()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port[0])


def before_ddp(source: str) -> None:
    """Most blocks want a process group; some make it."""
    if not distributed.is_initialized() and "init_process_group" not in source:
        distributed.init_process_group("gloo")


def begin_horovod(names: dict[str, Any]) -> None:
    """The optimizer is a distributed one."""
    import hvd_compress.torch as hvd

    hvd.init()
    begin(names)
    names["hvd"] = hvd
    names["optimizer"] = hvd.DistributedOptimizer(
        names["optimizer"], names["model"].named_parameters(), compression=hvd.Compression.topk(0.1)
    )


KINDS: dict[str, tuple[Begin, Before]] = {
    "ddp": (begin_ddp, before_ddp),
    "horovod": (begin_horovod, lambda _: None),
}


def main(kind: str) -> None:
    Path(os.environ["JOB_FOLDER"], f"{os.getpid()}.pid").write_text(str(os.getpid()))
    rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    shared = Path(os.environ["JOB_FOLDER"], "shared")
    shared.mkdir(exist_ok=True)
    begin_kind, before = KINDS[kind]
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            Path("shared").symlink_to(shared)
            Page(page).run(kind, begin_kind, before)
            for place in Page(page).places(kind):
                print(f"[rank {rank}] ran {place}", flush=True)
            os.chdir("/")


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: the other rank may wait for this one
