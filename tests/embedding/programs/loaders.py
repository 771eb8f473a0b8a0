"""Wrap loaders anew again and again: threads and files stay as they are after the second time.

usage: loaders.py
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from hvd_compress.embedding import SGD, CachedEmbedding, Lookahead
from tests.jobs.programs.wraps import keeps_nothing


def lookahead() -> Any:
    """Dropped within its iteration."""
    table = CachedEmbedding(50, 8, name="table", optimizer=SGD(0.1))
    loader = Lookahead([torch.arange(8)] * 5, {lambda batch: batch: table}, cache_rows=50)
    for number, batch in enumerate(loader):
        table(batch).sum().backward()
        if number == 2:
            break
    return loader


def closed() -> Any:
    with lookahead() as loader:
        return loader


if "OMPI_COMM_WORLD_RANK" in os.environ:
    import hvd_compress.torch as hvd

    hvd.init()
else:
    dist.init_process_group("gloo")
keeps_nothing("lookahead", lookahead)
keeps_nothing("closed", closed)
