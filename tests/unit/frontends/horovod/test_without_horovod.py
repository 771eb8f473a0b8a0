"""Which runtime it is, and what programs that import horovod.torch find where there is no Horovod."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hvd_compress.errors import ConfigError
from hvd_compress.frontends.horovod import runtime_selection

PATCHED = """
import hvd_compress
hvd_compress.patch_horovod()
import horovod.torch as hvd
import hvd_compress.torch as ours
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.compression import Compression, Compressor
from horovod.torch.mpi_ops import allreduce
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm

assert hvd is ours and Compression is ours.Compression and allreduce is ours.allreduce
assert DistributedOptimizer is ours.DistributedOptimizer and HorovodInternalError is ours.HorovodInternalError

class Halves(Compressor):
    @staticmethod
    def compress(tensor):
        return tensor.half(), tensor.dtype

hvd.init()
import torch
assert hvd.allreduce(torch.ones(2), compression=Halves).dtype == torch.float32
print(hvd.elastic.run.__module__)
"""


def test_under_torchrun_horovods_ranks_would_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HVD_COMPRESS_RUNTIME", "HOROVOD_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert runtime_selection._choose()[0] == "torch"
    monkeypatch.setenv("HVD_COMPRESS_RUNTIME", "horovod")
    with pytest.raises(ConfigError, match="HVD_COMPRESS_RUNTIME=horovod under torchrun"):
        runtime_selection._choose()
    monkeypatch.setenv("HVD_COMPRESS_RUNTIME", "gloo")
    with pytest.raises(ConfigError, match="gloo"):
        runtime_selection._choose()


@pytest.mark.level2
def test_names_of_horovod_are_ours_when_patched() -> None:
    environment = {**os.environ, "HVD_COMPRESS_RUNTIME": "torch"}
    done = subprocess.run([sys.executable, "-c", PATCHED], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "hvd_compress.frontends.elastic.run" in done.stdout
