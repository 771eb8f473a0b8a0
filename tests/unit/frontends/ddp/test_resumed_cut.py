"""DDP cuts buckets anew in the second step, and a checkpoint may have been of others."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
import torch

from hvd_compress.compressors import Cast
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.frontends.ddp.hook import GradientHook
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings

NUMEL = 4


@dataclass
class Bucket:
    """As DDP hands one to its hook."""

    number: int
    last: bool
    flat: torch.Tensor
    own: list[torch.nn.Parameter]

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.last

    def buffer(self) -> torch.Tensor:
        return self.flat

    def parameters(self) -> list[torch.nn.Parameter]:
        return self.own


@pytest.mark.parametrize("cut", [("d", "cb", "a"), ("d", "cba"), ("dc", "b", "a")])
def test_results_are_the_mean_whichever_buckets_are_those_of_the_checkpoint(cut: tuple[str, ...]) -> None:
    """One of them that left at once would be overwritten by the copy that was made of it."""

    def body(engine: InProcessEngine) -> list[float]:
        parameters = {name: torch.nn.Parameter(torch.zeros(NUMEL)) for name in "abcd"}
        hook = GradientHook(parameters, Request(Cast()), Settings(600, 60), lambda: engine)
        hook.session.loaded.cuts = (("d",), ("c", "b", "a"))
        results = []
        for buckets in (("dcba",), cut, cut):
            flats = [torch.full((NUMEL * len(names),), float(engine.rank)) for names in buckets]
            for number, (names, flat) in enumerate(zip(buckets, flats, strict=True)):
                hook(Bucket(number, number == len(buckets) - 1, flat, [parameters[name] for name in names]))  # type: ignore[arg-type]
                time.sleep(0.02 * engine.rank)  # an exchange may be under way when the last one comes
            results += [float(value) for flat in flats for value in flat.unique()]
        return results

    for results in run_ranks(2, body):
        assert set(results) == {0.5}
