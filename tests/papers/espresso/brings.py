"""What the tests of Espresso's planner bring to those of the core: command lines, cases and decoders."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from hvd_compress.cli.main import main
from hvd_compress.compressors import BlockQuantizer, Cast, CompressedMomentum, Compressor, EFSign, PowerSGD, TopK
from hvd_compress.papers.espresso.by_option import ByOption
from hvd_compress.policies.plan_schema import read
from hvd_compress.request.request import Request
from tests.papers.espresso.traced import traced

COMMANDS = [("profile",), ("plan", "make"), ("bench", "planner"), ("probe",), ("timeline",)]
PICTURES = ["plan make", "plan compare", "timeline"]
DRAWING = ["timeline"]
MEANT = [
    ("plan options --only 'alreduce@all'", "did you mean allreduce@all?"),
    ("plan count-options --only 'alreduce@all'", "did you mean allreduce@all?"),
    ("profile --compressor itn4 -- true", "did you mean int4?"),
    ("profile --compressor topk:ratio=0.1,value=bf16 -- true", "did you mean values?"),
    ("plan make x -o y --compressor int4", "`hvd-compress profile --compressor int4 -- COMMAND` writes one"),
]
CHOICES = ["--engine", "--device", "--communication", "--testbed"]


def _beyond(number: str) -> list[list[str]]:
    counts = [["bench", "planner", "--gpus", number], ["plan", "count-options", "--devices", number]]
    deep = ["profile", "--compressor", f"topk:ratio={'[' * 100_000}", "--", "true"]
    return [*counts, deep, ["probe", "--budget", "1e308s"]]


BEYOND = [_beyond]


def _make(folder: Path) -> list[Any]:
    return ["plan", "make", folder, "-o", folder / "out.json", "--budget", 0]


def _compare(folder: Path) -> list[Any]:
    return ["plan", "compare", folder / "plan.json", folder / "run.json"]


def _bench(folder: Path) -> list[Any]:
    return ["bench", "planner", "--traces", folder / "traces", "--rounds", 1, "--gpus", 8]


READERS = {
    "timeline": ("run.json", lambda folder: ["timeline", folder / "run.json", "--out", folder / "out.png"]),
    "plan make, model": ("model.json", _make),
    "plan make, system": ("system.json", _make),
    "plan make, compressor": ("compressor.json", _make),
    "plan compare, plan": ("plan.json", _compare),
    "plan compare, timeline": ("run.json", _compare),
    "plan compare, model": ("model.json", _compare),
    "plan compare, system": ("system.json", _compare),
    "plan compare, compressor": ("compressor.json", _compare),
    "bench planner": ("traces/model.json", _bench),
}
WRITERS = {
    "timeline": lambda folder: ["timeline", folder / "run.json", "--out"],
    "plan make, plan": lambda folder: ["plan", "make", folder, "--budget", 0, "--out"],
    "plan make, trace": lambda folder: [*_make(folder), "--trace"],
    "plan make, picture": lambda folder: [*_make(folder), "--picture"],
    "plan compare": lambda folder: [*_compare(folder), "--picture"],
    "profile": lambda folder: ["profile", "-o"],
}
FOLDERS = ["profile"]
"""Writers of a folder."""
AFTER = {"profile": ["--", "true"]}
"""What follows what is written, by writer."""


def _write(folder: Path) -> None:
    done = CliRunner().invoke(main, [*map(str, _make(folder)), "--no-fusion"])
    assert done.exit_code == 0, done.output
    (folder / "out.json").rename(folder / "plan.json")
    traced(folder / "run.json", read(folder / "plan.json"))
    (folder / "traces").mkdir()
    shutil.copy(folder / "model.json", folder / "traces")


FILES = [_write]

CASES = [
    ("topk", "comp alltoall*@all decomp comp allgather*@all decomp", 3),
    ("dense", "reduce_scatter@within allreduce@across allgather@within", 4),
    ("topk-all", "reduce@within comp gather*@across decomp broadcast@across broadcast@within", 4),
    ("int8", "comp alltoall*@within decomp allreduce@across comp allgather*@within decomp", 4),
]
"""Options of the tree, which only a plan names: flat, not compressed, with roots, with two compressions within hosts.
test_by_option.py walks through all of them, and carries a third out, a bucket at a time."""

_OPTIONS = (
    "comp alltoall*@all decomp comp allgather*@all decomp",
    "comp gather*@all decomp comp broadcast*@all decomp",
    "comp alltoall*@all allgather*@all decomp",
)
"""One for each compressor that they carry, in turns. Messages hold several payloads in the last."""


def _decoders(compressors: Mapping[str, Compressor]) -> list[tuple[str, str]]:
    """Return (compressor, collective): whatever unpacks what another rank has packed."""
    carried = [name for name, each in compressors.items() if each.compresses and ByOption.carries(each)]
    return [(name, _OPTIONS[number % len(_OPTIONS)]) for number, name in enumerate(carried)]


DECODERS = [_decoders]

REQUESTS = {
    "efsign-within": Request(EFSign(), "hierarchical-within"),
    "int4-both": Request(BlockQuantizer(4), "hierarchical-both"),
    "topk-hitopk": Request(TopK(0.05), "hitopk"),
    "topk-server": Request(TopK(0.05), "parameter-server"),
}
"""Requests that tests call by name."""
RESUMED = REQUESTS
ALONE = ["efsign-within"]
"""Of them: what leaves nothing with one rank, which leads its host and sends its sum dense."""
BY_NAME = {
    "topk": ["hierarchical-both", "hierarchical-within", "hitopk", "parameter-server"],
    "dense": ["parameter-server"],
}
"""Collectives that run by name alone, of some compressions."""
ADDING = ["parameter-server"]
"""Collectives that add what an all-gather would."""
NOT_BY_HOSTS = [
    (PowerSGD(2), "hierarchical-within"),
    (CompressedMomentum(), "parameter-server"),  # what the server adds is a momentum
    (EFSign(), "hitopk"),
    (Cast(), "hierarchical-within"),
]
"""What such a collective cannot carry."""

ALLOWED = {
    "papers/espresso": {
        "__version__",
        "measuring",
        "buckets",
        "cli",
        "compression.named",
        "compressors",
        "cost",
        "engines.base",
        "engines.launch",
        "engines.layout",
        "engines.mpi",
        "engines.mpi_environment",
        "engines.names",
        "errors",
        "extras",
        "feedback.residual",
        "feedback.states",
        "frontends.handle",
        "frontends.recorded",
        "native",
        "papers.espresso",
        "payload",
        "services.ccr",
        "policies.plan_schema",
        "policies.plan_settings",
        "profiler",
        "request",
        "schema",
        "collectives",
        "services.base",
        "session.clocks",
        "session.gradient_times",
        "session.session",
        "session.worker",
        "settings",
        "events.timeline",
        "units",
    }
}
"""What the modules of this guest may import of the package."""

OPTIONS = [51]
"""Its commands have more options."""
