"""What `import hvd_compress` promises: no heavy import, nothing patched, one version."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

import hvd_compress


@pytest.mark.level1
def test_import_is_light() -> None:
    program = "import hvd_compress, hvd_compress.cli.main, sys; print([m for m in sys.modules if m in sys.argv[1:]])"
    heavy = ["torch", "horovod", "mpi4py", "numpy"]
    result = subprocess.run([sys.executable, "-c", program, *heavy], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.level2
def test_public_modules_need_no_import_of_their_own() -> None:
    program = """
import hvd_compress
assert hvd_compress.native.MAX_NUMEL == 2**31 - 1
assert issubclass(hvd_compress.errors.ConfigError, ValueError)
assert hvd_compress.ddp.Compression.int4() == hvd_compress.fsdp.Compression.int4()
assert not hasattr(hvd_compress, "nativ")
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_version_is_that_of_the_installed_package() -> None:
    assert importlib.metadata.version("hvd_compress") == hvd_compress.__version__
