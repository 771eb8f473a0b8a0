"""Run Horovod's own tests of torch, and those of its examples that need no download, on this package's runtime.

    git clone https://github.com/horovod/horovod
    python tools/horovod_suite.py horovod
    python tools/horovod_suite.py horovod --ranks 2 --launchers torchrun --stock    # no --stock without Horovod

Horovod cannot be imported meanwhile, unless --stock asks for the same tests on its own runtime. The tests import
hvd_compress.torch instead of horovod.torch; the examples are unchanged, after patch_horovod(). Their folder gets
torchvision and pillow from PyPI, and the digits of scikit-learn as MNIST's files. FOLDER gets what jobs print.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import progress
import results

ROOT = Path(__file__).resolve().parent.parent
TESTS = "test/parallel/test_torch.py"
LIMIT_S = 900
TIMEOUT_S = "40"
"""Of a tensor that waits: tests of errors let some."""

MUON = "gives Muon, which takes matrices only, all parameters"
HALVES = "expects of 16 bits what Horovod does not give for 3 ranks, either"
FAIL_ANYWHERE = dict.fromkeys(("test_broadcast_state", "test_broadcast_state_options", "test_force_allreduce"), MUON)
FAIL_BY_RANKS = {
    3: dict.fromkeys(
        (
            "test_horovod_allreduce_prescale",
            "test_horovod_grouped_reducescatter_prescale",
            "test_horovod_reducescatter_prescale",
        ),
        HALVES,
    )
}
"""Tests that fail with stock Horovod and torch 2.15, too, with their reason. They are left out."""

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ModuleNotFoundError("Horovod is left out of these tests", name="horovod")

sys.meta_path.insert(0, Block())
"""
COMMON = """
import contextlib
import os
import tempfile

def mpi_env_rank_and_size():
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("RANK", "WORLD_SIZE")):
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1

def skip_or_fail_gpu_test(test, message):
    test.skipTest(message)

@contextlib.contextmanager
def temppath():
    with tempfile.TemporaryDirectory() as folder:
        yield os.path.join(folder, "file")
"""
"""What the tests take from Horovod's test/utils/common.py, which imports its runner."""
PATCHED = (
    BLOCK
    + """
import runpy
import hvd_compress

hvd_compress.patch_horovod()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
)
LEAVE_OUT = """
def pytest_collection_modifyitems(config, items):
    out = [item for item in items if item.name in LEFT_OUT]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]
"""
BY_RANK = 'exec "$@" --junitxml="$0/${OMPI_COMM_WORLD_RANK:-$RANK}.xml"'


@dataclass(frozen=True)
class Example:
    """One of Horovod's, with words that make it short, and what it prints at its end."""

    path: str
    words: str
    prints: str


DIGITS = "--data-dir data --epochs 8 --batch-size 16 --lr 0.05"
EXAMPLES = (
    Example("examples/pytorch/pytorch_mnist.py", DIGITS, r"Accuracy: 9\d\."),
    Example("examples/pytorch/pytorch_mnist.py", f"{DIGITS} --use-adasum", r"Accuracy: 9\d\."),
    Example("examples/pytorch/pytorch_mnist.py", f"{DIGITS} --fp16-allreduce", r"Accuracy: 9\d\."),
    Example(
        "examples/pytorch/pytorch_synthetic_benchmark.py",
        "--model resnet18 --batch-size 2 --num-batches-per-iter 1 --num-iters 3 --fp16-allreduce",
        r"Total img/sec on \d",
    ),
    Example("examples/adasum/adasum_small_model.py", "--op Average", r"1\.0 Average"),
    Example("examples/adasum/adasum_small_model.py", "--op Adasum", r"1\.0 Adasum"),
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("horovod", type=Path, help="a checkout of Horovod")
    arguments.add_argument("--ranks", type=int, nargs="+", default=[2, 3])
    arguments.add_argument("--launchers", nargs="+", choices=("mpirun", "torchrun"), default=["mpirun", "torchrun"])
    arguments.add_argument("--stock", action="store_true", help="Horovod's runtime, and no examples: what passes there")
    arguments.add_argument("--folder", type=Path, default=ROOT / "build" / "horovod-suite")
    asked = arguments.parse_args()
    if not (asked.horovod / TESTS).is_file():
        sys.exit(f"error: {asked.horovod} is no checkout of Horovod: it has no {TESTS}")
    progress.adopt_orphans()
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    jobs = [(launcher, ranks) for launcher in asked.launchers for ranks in asked.ranks]
    passed = [_run_tests(asked.horovod, asked.folder, *job, stock=asked.stock) for job in jobs]
    if not asked.stock:
        _prepare_examples(asked.folder)
        passed += [
            _run_example(asked.horovod, asked.folder, each, launcher, ranks)
            for launcher, ranks in jobs
            for each in EXAMPLES
            if ranks & (ranks - 1) == 0 or "dasum" not in each.words  # which takes a power of two
        ]
    sys.exit(not all(passed))


def _launch(launcher: str, ranks: int) -> list[str]:
    if launcher == "torchrun":
        return ["torchrun", "--standalone", "--nproc-per-node", str(ranks), "--no-python"]
    return [
        "mpirun",
        *shlex.split(os.environ.get("MPIRUN_FLAGS", "--map-by :OVERSUBSCRIBE --bind-to none")),
        "-np",
        str(ranks),
    ]


def _run_tests(horovod: Path, folder: Path, launcher: str, ranks: int, *, stock: bool) -> bool:
    """Run them in one job; say how many pass on all ranks, and which do not."""
    there = folder / f"{launcher}-{ranks}"
    there.mkdir()
    text = (horovod / TESTS).read_text()
    if not stock:
        text = text.replace("import horovod.torch as hvd", "import hvd_compress.torch as hvd")
    known = FAIL_ANYWHERE | FAIL_BY_RANKS.get(ranks, {})
    conftest = f"{'' if stock else BLOCK}{LEAVE_OUT}\nLEFT_OUT = {list(known)}\n"
    for name, content in (("test_torch.py", text), ("common.py", COMMON), ("conftest.py", conftest)):
        (there / name).write_text(content)
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir=."]
    pytest += ["test_torch.py"]
    command = [*_launch(launcher, ranks), "sh", "-c", BY_RANK, ".", *pytest]
    code = _call(command, there, there / "log")
    cases = [results.read(there, f"{rank}.xml") for rank in range(ranks)]
    failed = sorted({case.name for each in cases for case in each if case.outcome == "failed"})
    passed = set.intersection(*({case.name for case in each if case.outcome == "passed"} for each in cases))
    print(f"{there.name}: {len(passed)} tests pass, {len(failed)} fail, {len(known)} are left out", flush=True)
    for name in failed:
        print(f"  FAILED {name}: see {there / 'log'}")
    for name, why in known.items():
        print(f"  left out: {name} {why}")
    return code == 0 and bool(passed)


def _prepare_examples(folder: Path) -> None:
    target = folder / "packages"
    # Without what they depend on: that is torch, which is here.
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        target,
        "torchvision",
        "pillow",
        "filelock",
    ]
    subprocess.run(pip, check=True)
    sys.path.insert(0, str(ROOT / "examples"))
    from images.data import load_digits

    raw = folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    digits = load_digits()
    for name, split in (("train", digits.train), ("t10k", digits.test)):
        images, labels = split.images.numpy(), split.labels.byte().numpy()
        header = struct.pack(">4I", 2051, *images.squeeze(1).shape)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, len(labels)) + labels.tobytes())


def _run_example(horovod: Path, folder: Path, example: Example, launcher: str, ranks: int) -> bool:
    words = [sys.executable, "-c", PATCHED, str((horovod / example.path).resolve()), *shlex.split(example.words)]
    log = folder / f"{launcher}-{ranks}-example-{EXAMPLES.index(example)}.log"
    code = _call([*_launch(launcher, ranks), *words], folder, log, {"PYTHONPATH": str(folder.resolve() / "packages")})
    passed = code == 0 and re.search(example.prints, log.read_text()) is not None
    shown = f"{Path(example.path).name} {example.words}"
    print(f"{launcher}-{ranks}: {shown}: {'ok' if passed else f'FAILED with exit code {code}: see {log}'}", flush=True)
    return passed


def _call(command: Sequence[str], folder: Path, log: Path, variables: Mapping[str, str] | None = None) -> int | None:
    """Return the exit code; None where it takes too long."""
    environment = {"HVD_COMPRESS_TIMEOUT_S": TIMEOUT_S, "OMP_NUM_THREADS": "1", **os.environ, **(variables or {})}
    with log.open("w") as output:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        finally:
            progress.end_orphans()
    return done.returncode


if __name__ == "__main__":
    progress.main(main)
