"""The optimizers need no front end."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hvd_compress.optim as optim


def test_what_it_offers() -> None:
    assert sorted(optim.__all__) == ["DeMo", "OneBitAdam"]
    assert all(hasattr(optim, name) for name in optim.__all__)


@pytest.mark.level2
def test_importing_it_imports_neither_horovod_nor_mpi() -> None:
    program = "import hvd_compress.optim, sys; print({'horovod', 'mpi4py'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.strip() == "set()"
