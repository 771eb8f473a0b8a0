"""Imported before what needs FSDP2: skips the module that imports it where torch is older."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.fsdp

if not hasattr(getattr(torch.distributed.fsdp, "FSDPModule", None), "set_reduce_scatter_unused_params"):
    pytest.skip(f"FSDP2 of torch {torch.__version__} takes no custom collectives", allow_module_level=True)
