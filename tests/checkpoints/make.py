"""Write an archive of checkpoints as today's code saves them, with the results of the steps after each.

    python -m tests.checkpoints.make NAME

Run it before a format changes, and after a case was added. No archive is ever overwritten: it stands for what users
have on disk, written by the code of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

import hvd_compress
from hvd_compress import of
from hvd_compress.compressors import DenseMomentum
from hvd_compress.cost import store
from hvd_compress.cost.curves import Curve, Curves
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.policies.plan_settings import settings_of
from tests.checkpoints import archive
from tests.checkpoints.cases import DDP, DROP_IN, FSDP, RANKS, Gradients
from tests.checkpoints.embeddings import Tables
from tests.checkpoints.formats import FORMS
from tests.checkpoints.runs import drop_in, launched, planned, record
from tests.clock import hold
from tests.harness import COMPRESSORS
from tests.unit.frontends.ddp import job

PLANS = [name for name in DROP_IN if not name.startswith(("accordion", "covap", "int4-", "momentum", "onebit_adam"))]
"""Cases that a plan can describe completely: no policy changes their decisions from step to step."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the archive, such as the version whose formats it holds")
    name = parser.parse_args().name
    if archive.path_of(name).exists():
        print(f"{archive.path_of(name)} is there, and is not written again: choose another name", file=sys.stderr)
        return 1
    with TemporaryDirectory() as temporary, TemporaryDirectory() as cache:
        os.environ["HVD_COMPRESS_CACHE"] = cache
        write(Path(temporary))
        archive.pack(Path(temporary), name)
    print(f"{archive.path_of(name)}: {archive.path_of(name).stat().st_size:,} bytes")
    return 0


def write(folder: Path) -> None:
    """Write all files of an archive. HVD_COMPRESS_CACHE must name a folder that is not the user's."""
    about = {"hvd_compress": hvd_compress.__version__, "torch": torch.__version__, "python": sys.version}
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    gradients = Gradients.drawn()
    torch.save(gradients.table, folder / "gradients.pt")
    for name in DROP_IN:
        write_drop_in(name, gradients, made(folder / "drop-in" / name))
    for name in PLANS:
        write_plan(name, gradients, made(folder / "plans" / name))
    named = {name: each for name, each in COMPRESSORS.items() if type(each) is not DenseMomentum}  # of a policy alone
    settings = {name: settings_of(compressor) for name, compressor in named.items()}
    (folder / "compressors.json").write_text(json.dumps(settings, indent=1) + "\n")
    cache = os.environ["HVD_COMPRESS_CACHE"]
    job.run_ranks(write_launched, gradients, folder, ranks=RANKS, HVD_COMPRESS_CACHE=cache)
    run_ranks(RANKS, lambda engine: write_tables(engine, made(folder / "embedding")))
    write_curves(made(folder / "curves"))


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_drop_in(name: str, gradients: Gradients, folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = hold(patch) if DROP_IN[name].adapts else None
        run_ranks(RANKS, lambda engine: record(drop_in(name, engine, clock), gradients, folder))


def write_plan(name: str, gradients: Gradients, folder: Path) -> None:
    """Write the plan that a training uses, and the results of a new training by it."""
    path = folder / "plan.json"

    def save(engine: InProcessEngine) -> None:
        training = drop_in(name, engine, clock)
        training.train(gradients, training.case.steps)
        if engine.rank == 0:
            of(training.optimizer).save_plan(path)

    with pytest.MonkeyPatch.context() as patch:
        clock = hold(patch) if DROP_IN[name].adapts else None
        run_ranks(RANKS, save)
    torch.save(run_ranks(RANKS, lambda engine: planned(path, engine, gradients))[0], folder / "results.pt")


def write_launched(rank: int, gradients: Gradients, folder: Path) -> None:
    for front, names in {"ddp": DDP, "fsdp": FSDP}.items():
        for name in names:
            record(launched(front, name, rank), gradients, made(folder / front / name))
    for name, form in FORMS.items():
        form.record(rank, gradients, made(folder / "forms" / name))


def write_tables(engine: InProcessEngine, folder: Path) -> None:
    torch.manual_seed(0)  # a journal holds the state of torch's random numbers
    saved = Tables(engine).first()
    torch.save(saved, folder / f"rank{engine.rank}.pt")
    torch.save(Tables(engine).resumed(saved)[1], folder / f"after{engine.rank}.pt")
    Tables(engine, folder / "journal").first()


def write_curves(folder: Path) -> None:
    """Write the file of a job on two hosts, with invented times."""
    keys = [("alltoall", "auto"), ("allgather", "auto"), ("allreduce", "ring")]
    curves = Curves(RANKS, {key: Curve((1024, 65536), (1e-4 * (1 + n), 1e-3 * (1 + n))) for n, key in enumerate(keys)})
    shape = store.JobShape("in-process", RANKS, ("first", "second"), "none")
    store.save(curves, shape, folder)


if __name__ == "__main__":
    sys.exit(main())
