"""Several buckets exchanged at a time: the same bits, beside each other, and errors as with one."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from hvd_compress import collectives, of
from hvd_compress.collectives.base import Exchange
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Engine
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError
from hvd_compress.session.pipeline import Pipeline
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, backward, make_optimizer, make_parameters, place

PATIENCE_S = 120.0
SHAPES = {f"layer {number}": (7, 11 + number) for number in range(6)}
"""A bucket each."""


class Meets(Exchange):
    """An exchange whose collectives wait until another one's have begun, too."""

    def __init__(self, meeting: threading.Barrier) -> None:
        self.meeting = meeting
        self.engine: Engine
        self.thread = ""

    def encode(self) -> None: ...

    def communicate(self, engine: Engine) -> None:
        self.engine, self.thread = engine, threading.current_thread().name
        self.meeting.wait(PATIENCE_S)

    def decode(self) -> torch.Tensor:
        return torch.tensor(True)


def laid(tracks: int, timeout_s: float = PATIENCE_S) -> Pipeline:
    pipeline, engine = Pipeline(timeout_s), InProcessWorld(2).engine(0)
    engine.tracks_asked = tracks
    pipeline.connect(lambda: engine, lambda engine: None, PATIENCE_S)
    return pipeline


def test_neighbours_are_exchanged_at_the_same_time() -> None:
    pipeline = laid(3)
    meeting = threading.Barrier(3)
    exchanges = [Meets(meeting) for _ in range(6)]
    for number, exchange in enumerate(exchanges):
        pipeline.submit(number, exchange, f"bucket {number}")
    assert pipeline.finish().finite
    threads = [exchange.thread for exchange in exchanges]
    assert threads == 2 * [f"hvd-compress-collectives{suffix}" for suffix in ("", "-1", "-2")]
    engines = [exchange.engine for exchange in exchanges]
    assert len(set(map(id, engines))) == 3
    assert engines[:3] == engines[3:]
    assert len({id(engine.ledger) for engine in engines}) == 3, "each says what runs on it"
    pipeline.stop()


def test_what_needs_groups_of_ranks_stays_on_the_first_track() -> None:
    pipeline = laid(2)
    exchanges = [Meets(threading.Barrier(1)) for _ in range(4)]
    for number, exchange in enumerate(exchanges):
        pipeline.submit(number, exchange, f"bucket {number}", first_track=number == 1)
    pipeline.finish()
    assert [exchange.thread[-1] for exchange in exchanges] == ["s", "s", "s", "1"]
    pipeline.stop()


def test_a_timeout_tells_what_is_under_way_on_its_own_track() -> None:
    pipeline = laid(2, timeout_s=0.3)
    stuck = Meets(threading.Barrier(2))
    pipeline.submit(0, Meets(threading.Barrier(1)), "step 3, bucket 0")
    pipeline.submit(1, stuck, "step 3, bucket 1")
    pipeline._communicated[0].result(PATIENCE_S).result(PATIENCE_S)
    with pytest.raises(CommunicationError, match=r"rank 0, step 3, bucket 1: no answer within 0\.3 s .* in before the"):
        pipeline.finish()
    stuck.meeting.abort()


def trained(engine: InProcessEngine, name: str, in_flight: int, hosts: tuple[int, ...] = ()) -> torch.Tensor:
    if hosts:
        place(engine, hosts)
    parameters = make_parameters(SHAPES)
    settings = Settings(0, 60, check_every=2, in_flight=in_flight)
    optimizer = make_optimizer(
        parameters, REQUESTS[name], lambda: engine, engine.rank, engine.world_size, settings=settings
    )
    for step in range(6):
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        optimizer.step()
    assert len(of(optimizer).decisions) == len(SHAPES)
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])


FIRST = {request.collective: name for name, request in reversed(REQUESTS.items())}.values()
"""One request a collective."""


@pytest.mark.parametrize("name", [n if n in FIRST else pytest.param(n, marks=pytest.mark.level2) for n in REQUESTS])
def test_results_are_those_of_one_at_a_time(name: str) -> None:
    request = REQUESTS[name]
    in_groups = (
        request.collective != "auto" and collectives.build(request.compressor, Path(request.collective)).in_groups
    )
    hosts = (0, 0, 1, 1) if in_groups else ()
    one = run_ranks(4, lambda engine: trained(engine, name, 1, hosts))
    several = run_ranks(4, lambda engine: trained(engine, name, 3, hosts))
    for result in several:
        assert torch.equal(result, one[0])


def test_ranks_must_ask_for_as_many() -> None:
    def body(engine: InProcessEngine) -> str:
        with pytest.raises(ConfigError) as caught:
            trained(engine, "dense", 1 + engine.rank)
        return str(caught.value)

    for message in run_ranks(2, body):
        assert "HVD_COMPRESS_IN_FLIGHT" in message


def test_an_engine_that_cannot_is_an_error_on_every_rank() -> None:
    def body(engine: InProcessEngine) -> str:
        engine.capabilities = replace(engine.capabilities, splits=False)
        with pytest.raises(UnsupportedError) as caught:
            trained(engine, "dense", 2)
        return str(caught.value)

    for message in run_ranks(2, body):
        assert "exchanges one bucket at a time here: unset HVD_COMPRESS_IN_FLIGHT" in message


def test_one_rank_needs_no_second_track() -> None:
    (result,) = run_ranks(1, lambda engine: trained(engine, "dense", 4))
    assert torch.isfinite(result).all()
