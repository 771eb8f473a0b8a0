"""Train for some steps with STAR; in one of them, rank 1 meets what is named on the command line.

usage: train.py ENGINE MISFORTUNE STEP

From that step on rank 0 waits PATIENCE_S seconds for the others. All else may take as long as a busy machine needs.
Where all are interrupted, they train until then.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import count
from pathlib import Path
from threading import Timer

import quick_start  # noqa: F401
import torch

import hvd_compress.torch as hvd
from hvd_compress.engines import rendezvous_arrivals
from hvd_compress.session import waiting
from hvd_compress.session.waiting import Waits

STEPS = 6


def fail(*_: object) -> None:
    raise ValueError("bad luck")


def in_folder(name: str) -> Path:
    return Path(os.environ["JOB_FOLDER"], name)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


MISFORTUNES = {
    "none": lambda model: None,
    "dies": lambda model: os._exit(3),
    "exits": lambda model: sys.exit(3),
    "is killed": lambda model: os.kill(os.getpid(), signal.SIGKILL),
    "is stopped": lambda model: os.kill(os.getpid(), signal.SIGSTOP),
    "does something else": lambda model: time.sleep(1000),
    "raises": fail,
    "raises in the backward pass": lambda model: model.weight.register_hook(fail),
    "is interrupted": lambda model: Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start(),
    "is interrupted with all others": lambda model: None,  # the test does it
    "leaves": lambda model: sys.exit(0),
    "goes back twice": lambda model: None,  # see below
}


def lose_patience(own: Waits) -> None:
    """Rank 0 does when all have ended the steps so far, and all but rank 1 have told that they wait for it."""
    rendezvous_arrivals.LIMIT_S = waiting.ANSWER_S = 100.0  # the launcher may be late, too
    hvd.barrier()
    told = in_folder("told")
    if hvd.rank() > 1:
        announce = own._arrivals.announce
        own._arrivals.announce = lambda wait: (announce(wait), told.touch())
    elif hvd.rank() == 0:
        if hvd.size() > 2:
            wait_for(told)
        own.timeout_s = float(os.environ["PATIENCE_S"])


def main(engine: str, misfortune: str, unlucky_step: int) -> None:
    model = torch.nn.Linear(20, 30)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer.step()  # imports what torch imports late, so that the ranks set out together
    optimizer = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), hvd.Compression.topk(0.1).by(collective="star", engine=engine)
    )
    hvd.barrier()
    for step in count() if misfortune == "is interrupted with all others" else range(STEPS):
        if step == unlucky_step:
            lose_patience(optimizer._reducer.session._pipeline._waits)
            if hvd.rank() == 1:
                in_folder("unlucky").touch()
                MISFORTUNES[misfortune](model)
            elif misfortune == "is interrupted":
                wait_for(in_folder("ended"))  # so that rank 1 is, while it waits for this one
        optimizer.zero_grad()
        loss = model(torch.randn(4, 20)).square().sum()
        loss.backward()
        if misfortune == "goes back twice" and hvd.rank() == 1 and step == unlucky_step:
            model(torch.randn(4, 20)).sum().backward()
        optimizer.step()
    print(f"[rank {hvd.rank()}] has trained", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it starts in the background ignore it
    hvd.init()
    in_folder(f"{hvd.rank()}.pid").write_text(str(os.getpid()))
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    except (Exception, KeyboardInterrupt) as error:
        in_folder("ended").touch()
        print(f"[rank {hvd.rank()}] {type(error).__name__}: {error}", flush=True)
        raise
