"""Short runs of examples/train_dlrm.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.level2

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
SCRIPT = EXAMPLES / "train_dlrm.py"
SHORT = ["--steps", "40", "--lookahead", "5", "--report-every", "20", "--scale", "0.001"]


def run(*words: object, launch: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *launch, SCRIPT, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", output)]


def rows_a_step(output: str) -> dict[str, int]:
    (line,) = re.findall(r"rows a step over all ranks: (.*)", output)
    return {name: int(count.replace(",", "")) for name, count in (each.split() for each in line.split(", "))}


def check_training(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert "58,929 dense parameters on 1 rank(s)" in done.stdout
    assert re.search(r"40 steps, [\d.]+ steps/s", done.stdout)
    first, last, test = losses(done.stdout)
    assert test < first
    rows = rows_a_step(done.stdout)
    assert rows["used"] > rows["prefetched"] > 0
    assert re.search(r"test: loss [\d.]+, AUC 0\.\d+", done.stdout)
    assert 0 < last < 1


def test_one_rank_trains_with_horovod_and_is_killed_and_goes_on_after_its_last_step(tmp_path: Path):
    compressed = (*SHORT, "--compression", "topk", "--ratio", "0.1")
    whole = run(*compressed)
    check_training(whole)
    words = (*compressed, "--journal", tmp_path / "journal")
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    first = subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, words)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    with first:
        assert any(line.startswith("step 20:") for line in first.stdout)
        first.kill()
    second = run(*words)
    assert second.returncode == 0, second.stderr
    (begun,) = re.findall(r"goes on behind step (\d+)", second.stdout)
    assert int(begun) >= 19, "the line is printed within the step"
    assert second.stdout.splitlines()[-1] == whole.stdout.splitlines()[-1], "the score of the test"


def test_two_ranks_train_deepfm_by_torchrun():
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = run(*SHORT, "--model", "deepfm", "--ddp", "--sync-precision", "int8", launch=launch)
    assert done.returncode == 0, done.stderr
    assert "35,471 dense parameters on 2 rank(s)" in done.stdout
    assert len(losses(done.stdout)) == 3
    rows = rows_a_step(done.stdout)
    assert rows["used"] > rows["single_user"] > 0
    assert rows["sync_now"] > 0


def test_a_malformed_file_is_one_clear_sentence(tmp_path: Path):
    path = tmp_path / "train.txt"
    path.write_text("0\t1\n")
    done = run("--data", path, "--batch-size", "2")
    assert done.returncode == 2
    assert f"rank 0: {path}, line 1, column 3" in done.stderr
    assert "Traceback" not in done.stderr
