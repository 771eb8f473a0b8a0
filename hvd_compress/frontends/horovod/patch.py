"""For programs that keep `import horovod.torch as hvd`: put our drop-in into Horovod's namespace."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from hvd_compress.errors import UsageError
from hvd_compress.frontends.horovod.background import init
from hvd_compress.frontends.horovod.broadcasts import (
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    synchronize,
)
from hvd_compress.frontends.horovod.compression import Compression
from hvd_compress.frontends.horovod.distributed import DistributedOptimizer
from hvd_compress.frontends.horovod.optimizer_state import broadcast_optimizer_state
from hvd_compress.frontends.horovod.parameters import broadcast_parameters
from hvd_compress.frontends.horovod.runtime_selection import RUNTIME, hvd
from hvd_compress.runtime import compression

_OURS = {
    "Compression": Compression,
    "DistributedOptimizer": DistributedOptimizer,
    "broadcast": broadcast,
    "broadcast_": broadcast_,
    "broadcast_async": broadcast_async,
    "broadcast_async_": broadcast_async_,
    "broadcast_optimizer_state": broadcast_optimizer_state,
    "broadcast_parameters": broadcast_parameters,
    "init": init,
    "synchronize": synchronize,
}
_HOROVODS = {name: getattr(hvd, name, None) for name in _OURS}
_NAMES = ("horovod", "horovod.torch")
_PARTS = ("functions", "mpi_ops", "optimizer", "sync_batch_norm")
"""Modules of horovod.torch from which programs import its names."""


def patch_horovod(drop_in: ModuleType) -> None:
    """Replace `DistributedOptimizer`, `Compression`, broadcasts, `synchronize`, `init` in horovod.torch and below it.

    Call it before `from horovod.torch import ...`, and before hvd.init() so that MPI's algorithms can be chosen. No
    file is changed, stock compressions work as before, and calling it twice does no harm. Where this package's own
    runtime stands for Horovod, `drop_in`, hvd_compress.torch, is what the program imports by its name.

    Raises:
        UsageError: the program has imported Horovod, and this package's runtime is to stand for it.
    """
    if RUNTIME == "torch":
        _stand_for_horovod(drop_in)
        return
    modules = [module for name, module in sys.modules.items() if f"{name}.".startswith("horovod.torch.")]
    for name, value in _OURS.items():
        for module in modules:
            if vars(module).get(name) is _HOROVODS[name]:
                setattr(module, name, value)


def _stand_for_horovod(drop_in: ModuleType) -> None:
    if sys.modules.get(_NAMES[1], drop_in) is not drop_in:
        raise UsageError(
            "horovod.torch was imported before patch_horovod(): call that first in the program, or set "
            "HVD_COMPRESS_RUNTIME=horovod"
        )
    package = ModuleType(_NAMES[0], "What stands for Horovod: hvd_compress.torch.")
    package.__spec__, package.__path__ = ModuleSpec(_NAMES[0], None, is_package=True), []
    casts = {name: getattr(compression, name) for name in ("Compressor", "NoneCompressor", "FP16Compressor")}
    parts = dict.fromkeys(_PARTS, drop_in)
    parts["compression"] = _module("horovod.torch.compression", Compression=Compression, **casts)
    sys.modules.update({f"{_NAMES[1]}.{name}": module for name, module in parts.items()})
    for name, module in parts.items():
        setattr(drop_in, name, module)
    package.torch = drop_in  # type: ignore[attr-defined]
    sys.modules.update(zip(_NAMES, (package, drop_in), strict=True))
    sys.modules["horovod.common"] = package
    sys.modules["horovod.common.exceptions"] = _module(
        "horovod.common.exceptions", HorovodInternalError=hvd.HorovodInternalError
    )


def _module(name: str, **names: object) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made
