"""On whose runtime the drop-in stands: Horovod's where it is installed, else this package's, over torch alone."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from hvd_compress.checks import check_choice
from hvd_compress.errors import ConfigError, MissingPackageError
from hvd_compress.extras import needed
from hvd_compress.settings import PREFIX
from hvd_compress.warned import warn_caller

NAMES = ("horovod", "torch")
"""What HVD_COMPRESS_RUNTIME may say."""


def _choose() -> tuple[str, str, ModuleType]:
    """Return the name of a runtime, why it is that one, and the module that has its functions.

    Raises:
        ConfigError: the variable names none, or Horovod under torchrun.
        MissingPackageError: it names Horovod, which cannot be imported.
    """
    by_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    asked = os.environ.get(f"{PREFIX}RUNTIME", "")
    if asked:
        check_choice(f"{PREFIX}RUNTIME", asked, NAMES)
        if asked == "horovod" and by_torchrun and "HOROVOD_RANK" not in os.environ:
            raise ConfigError(
                f"{PREFIX}RUNTIME=horovod under torchrun: Horovod's ranks would not meet. Unset it, or launch with "
                "mpirun or horovodrun"
            )
        return asked, f"{PREFIX}RUNTIME={asked}", _imported(asked)
    if by_torchrun:
        return "torch", "torchrun has started this process, by which Horovod's ranks cannot meet", _imported("torch")
    before = set(sys.modules)
    try:
        return "horovod", "Horovod is installed", _imported("horovod")
    except MissingPackageError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name == "horovod":
            return "torch", "Horovod is not installed", _imported("torch")
        for name in sorted(sys.modules.keys() - before):  # a part of it may have been imported
            if name.partition(".")[0] == "horovod":
                del sys.modules[name]
        why = f"{type(cause).__name__}: {cause}"
        warn_caller(
            f"Horovod is installed, and cannot be imported ({why}): hvd_compress.torch uses its own runtime. Build "
            f"Horovod again with `python tools/install_horovod.py`, or set {PREFIX}RUNTIME=torch to silence this"
        )
        return "torch", f"Horovod is installed, and does not work: {cause}", _imported("torch")


def _imported(name: str) -> ModuleType:
    if name == "torch":
        from hvd_compress.runtime import api

        return api
    with needed("horovod", "hvd_compress.torch"):
        import horovod.torch
        import horovod.torch.mpi_ops  # fails where its library was built for another torch, which it has only printed
    found: ModuleType = horovod.torch
    return found


RUNTIME: str
WHY: str
hvd: Any
RUNTIME, WHY, hvd = _choose()
