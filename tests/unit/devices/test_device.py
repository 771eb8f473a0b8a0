"""What a lane tells the streams, where no result on the played device would show that it did not."""

from __future__ import annotations

import torch

from hvd_compress.devices.device import DeviceLane
from hvd_compress.devices.staged import StagedLane
from tests.harness import REQUESTS, alone, backward, make_optimizer, on_engine
from tests.played import PlayedLanes, PlayedStream, PlayedStreams


def test_gradients_of_several_streams_are_waited_for_on_each() -> None:
    streams = PlayedStreams()
    lane = DeviceLane(streams)
    lane.workspace(torch.zeros(4))
    other = PlayedStream("other", eager=True)
    with streams.use(other):
        lane.mark_ready()
    lane.mark_ready()
    lane.record_input()
    with lane.encoding():
        pass
    waits = [(what, stream) for what, stream, _ in streams.log if what.startswith("after")]
    assert waits == [("after other", "outbound"), ("after training", "outbound")]


def test_the_allocator_is_told_of_every_stream_that_uses_memory_of_another() -> None:
    streams = PlayedStreams()
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-star"], lanes=PlayedLanes(StagedLane, streams))
    backward(parameters, 0, 0)
    optimizer.step()
    for bucket in optimizer._reducer.session.buckets.every:
        assert bucket.state.residual is not None
        for tensor in (bucket.flat, bucket.state.residual.current, bucket.state.residual.pending):
            assert {stream.name for kept, stream in streams.kept if kept is tensor} == {"outbound", "inbound"}


def test_sparse_results_are_kept_for_the_training() -> None:
    streams = PlayedStreams()
    table = torch.nn.Parameter(torch.zeros(9, 4))
    parameters = {"table": table}
    optimizer = make_optimizer(parameters, REQUESTS["dense"], alone, 0, 1, lanes=PlayedLanes(StagedLane, streams))
    torch.nn.functional.embedding(torch.tensor([1, 3]), table, sparse=True).sum().backward()
    optimizer.synchronize()
    kept = {tensor.data_ptr() for tensor, stream in streams.kept if stream is streams.training}
    assert table.grad is not None
    assert {table.grad._indices().data_ptr(), table.grad._values().data_ptr()} <= kept


def test_what_is_done_to_a_full_bucket_comes_after_the_gradients_of_all_streams() -> None:
    streams = PlayedStreams()
    lane = DeviceLane(streams)
    lane.workspace(torch.zeros(4))
    with streams.use(PlayedStream("other", eager=True)):
        lane.mark_ready()
    lane.gather()  # in the training's stream, which will divide the bucket, for example
    assert [(what, stream) for what, stream, _ in streams.log if what.startswith("after")] == [
        ("after other", "training")
    ]
