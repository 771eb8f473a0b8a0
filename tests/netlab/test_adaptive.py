"""A job whose path is left open, on a slow network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_compress.netlab import Lab
from tests.jobs.launch import CHECKOUT, LIMIT_S, PROGRAMS
from tests.netlab.rights import require_lab

pytestmark = pytest.mark.level2


def test_a_slow_network_is_measured_and_nothing_is_sent_dense(tmp_path: Path) -> None:
    """A dense step takes 0.1 s, a compressed one a third of it: no busy machine turns that round."""
    require_lab()
    variables = {
        "HVD_COMPRESS_ADAPT": "1", "HVD_COMPRESS_CALIBRATION_S": "0.3", "HVD_COMPRESS_CACHE": str(tmp_path),
        "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHECKOUT), "JOB_FOLDER": str(tmp_path),
    }  # fmt: skip
    program = [sys.executable, str(PROGRAMS / "adapt.py"), "none"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with Lab(2, "10ms", "20mbit") as lab:
        job = lab.run(program, env={**os.environ, **variables}, timeout_s=LIMIT_S, **pipes)
    assert job.returncode == 0, job.stdout
    ends = re.findall(r"\[rank \d\] chose (\S+)", job.stdout)
    assert len(ends) == 2, job.stdout
    assert ends[0] == ends[1]
    assert ends[0] in ("allgather", "star", "var")
