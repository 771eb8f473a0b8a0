"""Check the CUDA kernels on this machine's GPU.

`run` builds for this GPU, compares every kernel with its CPU twin, times it next to torch and cub::DeviceTopK, captures
it in graphs, and trains with two ranks that share the GPU. `sanitizers` runs small inputs under compute-sanitizer.

Needs nvcc, a torch that sees the GPU, and what builds the package (CMake, ninja, pybind11); it fetches nothing. What is
found goes to one folder, after each item: gpu-CARD.md, report.json and log.txt. The exit status is 1 where anything has
failed: a result differs, a kernel faults or hangs, a tool tells of a fault. What was left out is no failure, and a
bound that is missed is only marked.
"""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

BEGUN_S = time.monotonic()  # torch takes seconds to import, which count

import click  # noqa: E402
import torch  # noqa: E402

from benchmarks.frame.store import ROOT  # noqa: E402
from benchmarks.gpu.building import is_built  # noqa: E402
from benchmarks.gpu.items import outcome_of, work  # noqa: E402
from benchmarks.gpu.page import SANITIZERS  # noqa: E402
from benchmarks.gpu.parts import CCCL, PARTS, Place  # noqa: E402
from benchmarks.gpu.report import Report  # noqa: E402
from benchmarks.gpu.running import Runner  # noqa: E402
from benchmarks.gpu.sanitizers import TOOLS, sanitize  # noqa: E402
from benchmarks.gpu.scales import SCALES  # noqa: E402

OUT = ROOT / "build" / "gpu-check"
device_option = click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True,
    help="cpu tries the check itself, without a GPU, against itself.",
)  # fmt: skip
scale_option = click.option(
    "--scale", type=click.Choice(list(SCALES)), default="full", show_default=True, help="How much is done."
)
headers_option = click.option(
    "--cccl", "headers", type=click.Path(path_type=Path), default=CCCL, show_default=True,
    help="Folder that holds cub/ of CCCL 3.2 or later: unpack the package nvidia-cuda-cccl.",
)  # fmt: skip
out_option = click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)


@click.group(help=__doc__)
def main() -> None: ...


@main.command("run")
@out_option
@click.option("--limit-s", type=click.FloatRange(min=1), help="Seconds that all of it may take.  [default: no limit]")
@click.option("--part", "names", type=click.Choice(list(PARTS)), multiple=True, help="These alone.  [default: all]")
@scale_option
@device_option
@headers_option
def run(out: Path, limit_s: float | None, names: tuple[str, ...], scale: str, device: str, headers: Path) -> None:
    """Build, compare, time, capture and train."""
    _begin(device)
    report = Report(out.resolve(), facts(device, scale), goes_on=bool(names))
    limit_s = None if limit_s is None else limit_s - (time.monotonic() - BEGUN_S)
    runner = Runner(report, [f"--device={device}", f"--scale={scale}", f"--cccl={headers.resolve()}"], limit_s)
    for name in PARTS:
        if not names or name in names:
            runner.run(name)
    _end(report)


@main.command(SANITIZERS)
@out_option
@click.option(
    "--each-s", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds that each tool may take."
)
@click.option("--tool", "tools", type=click.Choice(list(TOOLS)), multiple=True, help="These alone.  [default: all]")
def sanitizers(out: Path, each_s: float, tools: tuple[str, ...]) -> None:
    """Run small inputs under compute-sanitizer; build before, where `run` has not."""
    _begin("cuda")
    report = Report(out.resolve(), facts("cuda", "sanitized"), goes_on=True)
    if not is_built():
        Runner(report, [], None).run("build")
    report.begin(SANITIZERS)
    begun_s = time.monotonic()
    for tool in tools or TOOLS:
        report.item(SANITIZERS, tool, _outcome(report, tool, each_s))
    report.end(SANITIZERS, time.monotonic() - begun_s)
    _end(report)


def _outcome(report: Report, tool: str, each_s: float) -> dict[str, Any]:
    begun_s = time.monotonic()
    with report.log.open("a") as log:
        outcome = outcome_of(lambda: sanitize(tool, each_s, log.write))
    return {"seconds": time.monotonic() - begun_s, **outcome}


@main.command("part", hidden=True)
@click.argument("name", type=click.Choice(list(PARTS)))
@click.option("--journal", type=click.Path(path_type=Path), required=True)
@click.option("--after", default="")
@click.option("--left-s", default=3600.0)
@scale_option
@device_option
@headers_option
def part(name: str, journal: Path, after: str, left_s: float, scale: str, device: str, headers: Path) -> None:
    """Run the items of a part in this process; how far it is stands in the journal."""
    place = Place(torch.device(device), SCALES[scale], headers, left_s)
    items = PARTS[name].items(place)
    sys.exit(0 if work(items, journal, after, lambda: require_usable(device)) else 1)


def require_usable(device: str) -> None:
    """Raise what CUDA says where a kernel has left this process without a context; free what an item has left."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _begin(device: str) -> None:
    """Let SIGTERM end what was started, too. Raises ClickException without a GPU."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if device == "cuda" and not torch.cuda.is_available():
        raise click.ClickException("torch sees no GPU here; run this on a machine that has one")


def facts(device: str, scale: str) -> dict[str, str]:
    """Return what the page says of this machine."""
    return {
        "card": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "scale": scale,
        "command": shlex.join(["python", "-m", "benchmarks.gpu.check", *sys.argv[1:]]),
    }


def _end(report: Report) -> None:
    failures = report.failures or ([] if report.has_run else ["nothing has run"])
    for failure in failures:
        report.say(f"FAILED: {failure}")
    report.say(f"{report.page}: {len(failures) or 'no'} failure{'s' * (len(failures) != 1)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
