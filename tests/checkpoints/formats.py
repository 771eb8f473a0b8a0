"""Other forms in which a program saves what DDP's compression remembers. All ranks record and check each."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

import hvd_compress.ddp as hc
from hvd_compress.integrations import files
from tests.checkpoints.cases import DDP, Gradients
from tests.checkpoints.runs import assert_same, check_after, load, quiet, record_after
from tests.checkpoints.training import Ddp

CASE = DDP["int4"]


def record_gathered(rank: int, gradients: Gradients, folder: Path) -> None:
    """Save one file for all ranks, and the state that a job of one rank loads from it."""
    training = Ddp(CASE, rank)
    training.train(gradients, CASE.steps)
    saved = {"model": training.model.module.state_dict(), "compression": hc.of(training.model).gathered_state_dict()}
    if rank == 0:
        torch.save(saved, folder / "all.pt")
    dist.barrier()
    record_after(training, gradients, folder)
    torch.save(_of_one_rank(rank, load(folder / "all.pt")), folder / f"mean{rank}.pt")


def check_gathered(rank: int, gradients: Gradients, folder: Path) -> None:
    training, saved = Ddp(CASE, rank), load(folder / "all.pt")
    with quiet():
        training.model.module.load_state_dict(saved["model"])
        hc.of(training.model).load_gathered_state_dict(saved["compression"])
        training.number = saved["compression"]["step"]
        own = {name: each for name, each in saved["compression"]["ranks"].items() if name == f"rank {rank} of 2"}
        assert_same(training.compression(), {**saved["compression"], "ranks": own})
        check_after(training, gradients, folder)
    assert training.compression()["buckets"] == saved["compression"]["buckets"]
    assert_same(_of_one_rank(rank, saved), load(folder / f"mean{rank}.pt"))


def _of_one_rank(rank: int, saved: dict[str, Any]) -> dict[str, Any]:
    groups: list[Any] = [dist.new_group([each]) for each in range(dist.get_world_size())]
    alone = Ddp(CASE, rank, groups[rank])
    hc.of(alone.model).load_gathered_state_dict(saved["compression"])
    return alone.compression()


def record_files(rank: int, gradients: Gradients, folder: Path) -> None:
    """Save a file a rank, as in the folders of transformers' and Accelerate's checkpoints."""
    training = Ddp(CASE, rank)
    training.train(gradients, CASE.steps)
    files.save(training.model, folder)
    torch.save(training.model.module.state_dict(), folder / f"model{rank}.pt")
    record_after(training, gradients, folder)


def check_files(rank: int, gradients: Gradients, folder: Path) -> None:
    training = Ddp(CASE, rank)
    training.model.module.load_state_dict(load(folder / f"model{rank}.pt"))
    training.number = CASE.steps
    with quiet():
        files.load(training.model, folder)
        assert_same(training.compression(), load(folder / f"hvd_compress_{rank}.pt"))
        check_after(training, gradients, folder)


def record_hook(rank: int, gradients: Gradients, folder: Path) -> None:
    """Save the pickled state of hook(), which holds classes of the package by their names."""
    state, hook = hc.hook(CASE.compression)
    training = Ddp(CASE, rank, hook=(state, hook))
    training.train(gradients, CASE.steps)
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(state, protocol=4))
    torch.save(training.saved(), folder / f"rank{rank}.pt")
    record_after(training, gradients, folder)


def check_hook(rank: int, gradients: Gradients, folder: Path) -> None:
    _, hook = hc.hook(CASE.compression)
    saved = load(folder / f"rank{rank}.pt")
    with quiet():
        training = Ddp(CASE, rank, hook=(pickle.loads((folder / f"rank{rank}.pickle").read_bytes()), hook))
        training.model.module.load_state_dict(saved["model"])
        training.number = saved["compression"]["step"]
        assert_same(training.compression(), saved["compression"])
        check_after(training, gradients, folder)


class Form(NamedTuple):
    """Functions of a rank, the gradients, and the folder of the form's files."""

    record: Callable[[int, Gradients, Path], None]
    check: Callable[[int, Gradients, Path], None]


FORMS = {
    "gathered": Form(record_gathered, check_gathered),
    "files": Form(record_files, check_files),
    "hook": Form(record_hook, check_hook),
}
