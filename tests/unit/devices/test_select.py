"""Which lane a bucket takes, and what is said where there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hvd_compress.buckets.plan import slots_of
from hvd_compress.devices import HOST, Lanes
from hvd_compress.devices.cuda import CudaStreams
from hvd_compress.devices.device import DeviceLane
from hvd_compress.devices.offload import OffloadLane
from hvd_compress.devices.select import lane_on
from hvd_compress.devices.staged import StagedLane
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends.optimizer.named_parameters import name_parameters
from tests.harness import REQUESTS, alone, backward, make_optimizer, make_parameters, on_engine
from tests.played import PlayedStreams

CUDA = torch.device("cuda", 0)


def test_the_cpu_needs_no_streams() -> None:
    assert Lanes().lane_for(torch.device("cpu"), "cpu", ("cpu",)) is HOST


@pytest.mark.parametrize(
    ("compression", "engine_takes", "lane"),
    [
        ("cuda", ("cpu",), StagedLane),
        ("cuda", ("cpu", "cuda"), DeviceLane),
        ("cpu", ("cpu", "cuda"), OffloadLane),
    ],
)
def test_a_gpu_has_three_ways(compression: str, engine_takes: tuple[str, ...], lane: type) -> None:
    streams = PlayedStreams()
    streams.device = CUDA
    made = lane_on(streams, compression, engine_takes)
    assert type(made) is lane
    assert made.device.type == compression


def test_a_gpu_that_torch_does_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match=r"cuda:0 cannot be used: torch .* sees 0 GPUs here"):
        CudaStreams(CUDA)


def test_a_device_that_is_neither_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="gradients on meta cannot be compressed"):
        Lanes().lane_for(torch.device("meta"), "cpu", ("cpu",))
    parameter = torch.nn.Parameter(torch.empty(3, device="meta"))
    with pytest.raises(UnsupportedError, match="parameter 'p' is on meta, and gradients are compressed on the CPU or"):
        name_parameters(torch.optim.SGD([parameter], lr=0.1), [("p", parameter)])


def test_a_gpu_for_parameters_on_the_cpu_is_refused_before_anything_is_communicated() -> None:
    request = replace(REQUESTS["topk-star"], device="cuda")
    with pytest.raises(ConfigError, match=r"parameter 'first.weight': device='cuda' asks for compression on a GPU"):
        make_optimizer(make_parameters(), request, alone, 0, 1)


def test_a_rank_on_another_device_is_found_in_the_handshake() -> None:
    """GPUs have other numbers on other ranks, so what is compared is how many devices came before."""
    on_meta = {name: torch.empty(1, device="meta") for name in ("a", "c")}
    slots, devices = slots_of({**on_meta, "b": torch.empty(1)})
    assert devices == {"meta 0": torch.device("meta"), "cpu": torch.device("cpu")}
    assert [slots[name].place for name in "abc"] == ["meta 0", "cpu", "meta 0"]

    def body(engine: InProcessEngine) -> None:
        place = "cpu" if engine.rank == 0 else "cuda 0"
        parameters, optimizer = on_engine(engine, REQUESTS["dense"])
        session = optimizer._reducer.session
        session.parameters = {name: replace(slot, place=place) for name, slot in session.parameters.items()}
        backward(parameters, engine.rank, 0)
        with pytest.raises(ConfigError, match=r"rank 0 has 'first.weight: .*32' where rank 1 has .* on cuda 0'"):
            optimizer.step()

    run_ranks(2, body)
