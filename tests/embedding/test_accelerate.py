"""A `Lookahead` around a loader that Accelerate has prepared."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import make_model
from tests.unit.integrations.launched import launched
from tests.unit.integrations.test_accelerate import IMPORTED, Loop

pytestmark = pytest.mark.level2


def test_two_ranks() -> None:
    run_ranks(train, ranks=2, imports=IMPORTED)


def train(rank: int) -> None:
    with launched(rank, 2):
        loaders_that_look_ahead()


def loaders_that_look_ahead() -> None:
    """Around a prepared loader: the last, shorter window steps, and metrics count each sample once, in each epoch."""
    from accelerate import Accelerator

    from hvd_compress.embedding import CachedEmbedding, Lookahead

    Loop.forget()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    data = [{"ids": torch.tensor([number % 7]), "number": torch.tensor(number)} for number in range(22)]
    prepared = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=3))
    model = accelerator.prepare(make_model())

    def run(loader: Any) -> list[Any]:
        synced, seen = [], []
        for each in loader:
            with accelerator.accumulate(model):
                synced.append(accelerator.sync_gradients)
            seen += accelerator.gather_for_metrics(each["number"]).tolist()
        assert not accelerator.gradient_state.in_dataloader
        return [synced, sorted(seen)]

    expected = [[[False, False, True, True], [*range(22)]]] * 2
    assert [run(prepared) for _ in range(2)] == expected
    rows = CachedEmbedding(7, 2, name="rows of a prepared loader")
    for lookahead in (1, 2, 10):
        with Lookahead(prepared, {"ids": rows}, cache_rows=7, lookahead=lookahead, trains=False) as loader:
            assert [run(loader) for _ in range(2)] == expected, lookahead
            assert (len(loader), loader.dataset, loader.batch_sampler) == (4, prepared.dataset, prepared.batch_sampler)
            loader.set_epoch(3)
            with pytest.raises(AttributeError, match="has no attribute '_missing'"):
                _ = loader._missing
            for _ in loader:  # left early, as a search does
                break
            del _
            assert not accelerator.gradient_state.in_dataloader
