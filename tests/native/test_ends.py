"""Processes that end, or fork, while another thread is inside a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from hvd_compress import native

pytestmark = pytest.mark.level2

LEAVE = """
import threading, time, torch
from hvd_compress import native

# A kernel around which no operator of torch runs: those would end the process with SIGABRT.
x, residual, out = torch.randn(3_000_000), torch.zeros(3_000_000), torch.empty(3_000_000)
inside = threading.Event()

def work():
    while True:
        inside.set()
        native.accumulate(x, residual, out=out)

for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
inside.wait()
"""


@pytest.fixture(scope="module", autouse=True)
def level() -> None:
    """In the place of conftest's: the pool is the same at every level."""


def test_python_ends_while_a_daemon_thread_is_in_a_kernel() -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=600)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_another_thread_is_in_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", "3")
    x = torch.arange(1_000_000, dtype=torch.float32)
    expected = native.topk(x, 1000)[0]
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            native.topk(x, 1000)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if torch.equal(native.topk(x, 1000)[0], expected) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
