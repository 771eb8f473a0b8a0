"""Accuracy on Fashion-MNIST, dense against each compression: 4 ranks, the same epochs, several seeds.

    python benchmarks/accuracy/run.py

Each run is a launch of examples/train_images.py under mpirun. What a run found is kept in build/accuracy, so that an
interrupted benchmark goes on where it stopped; a run with other settings, or --fresh, is done anew. The table goes to
benchmarks/results/accuracy-fashion-mnist.md.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from table import summarise, to_markdown

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "build" / "accuracy"
PAGE = ROOT / "benchmarks" / "results" / "accuracy-fashion-mnist.md"
OVERSUBSCRIBED = "--map-by :OVERSUBSCRIBE --bind-to none"
METHODS: dict[str, dict[str, Any]] = {
    "dense": {},
    "topk": {"ratio": 0.01},
    "star": {"ratio": 0.01},
    "var": {"ratio": 0.01},
    "efsign": {},
}


@dataclass(frozen=True)
class Run:
    """One training: a method with a seed."""

    method: str
    seed: int
    epochs: int
    ranks: int
    data_dir: Path | None

    @property
    def file(self) -> Path:
        return RUNS / f"{self.method}-seed{self.seed}.json"

    def finished(self) -> dict[str, Any] | None:
        """Return what an earlier launch with the same settings found."""
        if not self.file.exists():
            return None
        found: dict[str, Any] = json.loads(self.file.read_text())
        wanted = {"compression": self.method, "seed": self.seed, "epochs": self.epochs, **METHODS[self.method]}
        same = found["world_size"] == self.ranks and wanted.items() <= found["settings"].items()
        return found if same else None

    def command(self) -> list[str]:
        """Return the command line that launches the run."""
        options = {"compression": self.method, "seed": self.seed, "epochs": self.epochs, "json": self.file}
        if self.data_dir is not None:
            options["data-dir"] = self.data_dir
        mpirun = ["mpirun", "-np", str(self.ranks), *shlex.split(os.environ.get("MPIRUN_FLAGS", OVERSUBSCRIBED))]
        words = (
            word for name, value in {**options, **METHODS[self.method]}.items() for word in (f"--{name}", str(value))
        )
        return [*mpirun, sys.executable, str(ROOT / "examples" / "train_images.py"), *words]

    def launch(self) -> dict[str, Any]:
        """Train, and return what was found.

        Raises:
            click.ClickException: the training failed, or was not on Fashion-MNIST.
        """
        root_allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        status = subprocess.run(self.command(), env={**os.environ, **root_allowed, "PYTHONPATH": path}).returncode
        if status != 0:
            raise click.ClickException(f"exit status {status} of: {shlex.join(self.command())}")
        found: dict[str, Any] = json.loads(self.file.read_text())
        if found["data"] != "Fashion-MNIST":
            self.file.unlink()
            raise click.ClickException(
                f"trained on {found['data']}: install the package dataset-fashion-mnist, or use --data-dir"
            )
        found["commit"] = commit()  # what an earlier launch found may be of other code
        self.file.write_text(json.dumps(found))
        return found


def commit() -> str:
    """Return the commit that is measured; "-dirty" where files differ from it."""
    described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(described, check=True, capture_output=True, text=True).stdout.strip()


@click.command(help=__doc__)
@click.option("--epochs", default=5, show_default=True, type=click.IntRange(min=1))
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1), help="How many; they are 1, 2, ...")
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(min=2))
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder with the idx files, if not Debian's.")
@click.option("--fresh", is_flag=True, help="Repeat finished runs, too.")
def main(epochs: int, seeds: int, ranks: int, data_dir: Path | None, fresh: bool) -> None:
    RUNS.mkdir(parents=True, exist_ok=True)
    runs = [Run(method, seed, epochs, ranks, data_dir) for seed in range(1, seeds + 1) for method in METHODS]
    found = {run: None if fresh else run.finished() for run in runs}
    missing = [run for run in runs if found[run] is None]
    click.echo(f"{len(runs)} runs, {len(missing)} of them to do")
    start = time.monotonic()
    for done, run in enumerate(missing):
        rest = f", about {(time.monotonic() - start) / done * (len(missing) - done) / 60:.0f} min left" if done else ""
        click.echo(f"\n{done + 1} of {len(missing)}: {run.method}, seed {run.seed}{rest}")
        found[run] = run.launch()
    summary = summarise([found[run] for run in runs])
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(to_markdown(summary))
    click.echo("\n" + to_markdown(summary))


if __name__ == "__main__":
    main()
