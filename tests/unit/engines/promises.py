"""What every engine must do, as functions of an engine that all ranks call: one body for all engines.

A rank's data follows from its number, so that each rank can compute what the others hold without asking them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from hvd_compress.engines import layout
from hvd_compress.engines.base import ALGORITHMS, ALLGATHERS, BROADCASTS, Engine
from hvd_compress.engines.layout import AtMost
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError

MOVED_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int32, torch.int64)
ALL_DTYPES = (*MOVED_DTYPES, torch.int8, torch.int16)


def values(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what rank `rank` holds: small integers for integer dtypes, so that no sum overflows."""
    drawn = torch.randn(numel, generator=torch.Generator().manual_seed(1000 * numel + rank), dtype=torch.float64)
    return (drawn * 1e3).to(dtype) if dtype.is_floating_point else (drawn.abs() * 4).to(dtype)


def total(engine: Engine, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the exact sum over all ranks, in float64."""
    return torch.stack([values(rank, numel, dtype).double() for rank in range(engine.world_size)]).sum(0)


def sizes(engine: Engine, dtype: torch.dtype = torch.float32) -> tuple[int, ...]:
    """Empty, fewer elements than ranks, about as many, and many that divide by nothing.

    All of them for fp32, two for the other dtypes: ranks that share a core pay a time slice a round.
    """
    n = engine.world_size
    return (0, 1, n - 1, n + 1, 10007) if dtype == torch.float32 else (n - 1, 257)


def unequal(engine: Engine, shift: int = 0) -> list[int]:
    """Return a length for each rank, among them zero."""
    return [3 * ((rank + shift) % engine.world_size) for rank in range(engine.world_size)]


def assert_sum(result: torch.Tensor, exact: torch.Tensor) -> None:
    assert result.shape == exact.shape
    if result.dtype.is_floating_point:
        loose = 1e-2 if result.dtype in (torch.float16, torch.bfloat16) else 1e-5
        torch.testing.assert_close(result.double(), exact, rtol=loose, atol=loose * 1e4)
    else:
        assert torch.equal(result.double(), exact)


def assert_bit_identical(engine: Engine, tensor: torch.Tensor) -> None:
    raw = tensor.view(torch.uint8)
    assert all(torch.equal(raw, other) for other in engine.allgather(raw))


def allreduce_sums_and_leaves_the_same_bits(engine: Engine) -> None:
    for algorithm in ("auto", *engine.capabilities.algorithms):
        for dtype in engine.capabilities.sum_dtypes:
            for numel in sizes(engine, dtype):
                tensor = values(engine.rank, numel, dtype)
                engine.allreduce(tensor, algorithm)
                assert_sum(tensor, total(engine, numel, dtype))
                assert_bit_identical(engine, tensor)


def allgather_keeps_lengths_order_and_dtype(engine: Engine) -> None:
    for dtype in MOVED_DTYPES:
        for lengths in (unequal(engine), unequal(engine, 1), [5] * engine.world_size, [0] * engine.world_size):
            mine = values(engine.rank, lengths[engine.rank], dtype)
            for known in (None, lengths):
                gathered = engine.allgather(mine, known)
                assert [block.dtype for block in gathered] == [dtype] * engine.world_size
                for rank, block in enumerate(gathered):
                    assert torch.equal(block, values(rank, lengths[rank], dtype))


def broadcast_replaces_all_by_the_root(engine: Engine) -> None:
    for dtype in MOVED_DTYPES:
        for root in range(engine.world_size):
            for numel in sizes(engine, dtype):
                tensor = values(engine.rank, numel, dtype)
                engine.broadcast(tensor, root)
                assert torch.equal(tensor, values(root, numel, dtype))


def forced_broadcasts_and_allgathers_move_the_same(engine: Engine) -> None:
    """Each algorithm, with several segments, fewer bytes than ranks, and nothing at all."""
    for numel in (0, 1, 2 * engine.world_size + 1, 40_000):
        for algorithm in engine.capabilities.broadcasts:
            for root in range(engine.world_size):
                tensor = values(engine.rank, numel, torch.float32)
                engine.broadcast(tensor, root, algorithm)
                assert torch.equal(tensor, values(root, numel, torch.float32))
        for algorithm in engine.capabilities.allgathers:
            mine = values(engine.rank, numel, torch.uint8)
            blocks = engine.allgather(mine, [numel] * engine.world_size, algorithm)
            for rank, block in enumerate(blocks):
                assert torch.equal(block, values(rank, numel, torch.uint8))


def alltoall_delivers_each_part(engine: Engine) -> None:
    """The part from a to b has a length of its own, zero among them."""

    def part(source: int, destination: int, dtype: torch.dtype) -> torch.Tensor:
        return values(source, (source + 2 * destination) % 5, dtype) + destination

    known = [part(source, engine.rank, torch.uint8).numel() for source in range(engine.world_size)]
    for dtype in MOVED_DTYPES:
        for lengths in (None, known):
            received = engine.alltoall([part(engine.rank, other, dtype) for other in range(engine.world_size)], lengths)
            assert len(received) == engine.world_size
            for source, block in enumerate(received):
                assert torch.equal(block, part(source, engine.rank, dtype))
    assert all(block.numel() == 0 for block in engine.alltoall([torch.zeros(0)] * engine.world_size))


def less_than_the_most_arrives(engine: Engine) -> None:
    """Each receives the beginning of what it has memory for; where lengths go ahead just that. The most differ."""
    ranks = range(engine.world_size)

    def most(source: int, target: int) -> int:
        return 0 if source == target else 41 + 70 * source + 55 * target

    def part(source: int, target: int) -> torch.Tensor:
        share = (source + 2 * target) % 9
        return values(source, 0 if source == target else 1 + most(source, target) * share // 9, torch.uint8)

    def check(received: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], memory: Sequence[int]) -> None:
        for source, (block, own) in enumerate(zip(received, sent, strict=True)):
            assert torch.equal(block[: own.numel()], own)
            if source != engine.rank:
                assert block.numel() == (memory[source] if engine.takes_shorter else own.numel())

    sent, memory = ([most(engine.rank, r) for r in ranks], [most(r, engine.rank) for r in ranks])
    received = engine.alltoall([part(engine.rank, r) for r in ranks], AtMost(sent, memory))
    check(received, [part(r, engine.rank) for r in ranks], memory)
    for length in (41, 300, 400):
        mine, memory = values(engine.rank, 9 + engine.rank, torch.uint8), [length + r for r in ranks]
        received = engine.allgather(mine, AtMost([memory[engine.rank]] * engine.world_size, memory))
        check(received, [values(r, 9 + r, torch.uint8) for r in ranks], memory)


def reduce_scatter_returns_this_ranks_shard(engine: Engine) -> None:
    for dtype in engine.capabilities.sum_dtypes:
        for numel in sizes(engine, dtype):
            tensor = values(engine.rank, numel, dtype)
            mine = engine.reduce_scatter(tensor)
            assert mine.dtype == dtype
            assert_sum(mine, total(engine, numel, dtype)[layout.shard(numel, engine.world_size, engine.rank)])
            assert torch.equal(tensor, values(engine.rank, numel, dtype)), "the input must stay as it was"


def gather_brings_all_to_the_root(engine: Engine) -> None:
    if "gather" not in engine.capabilities.verbs:
        with pytest.raises(UnsupportedError, match="has no gather"):
            engine.gather(torch.ones(1), 0)
        return
    for dtype in MOVED_DTYPES:
        for root in range(engine.world_size):
            lengths = unequal(engine, root)
            for known in (None, lengths):
                gathered = engine.gather(values(engine.rank, lengths[engine.rank], dtype), root, known)
                if engine.rank != root:
                    assert gathered is None
                    continue
                assert gathered is not None
                for rank, block in enumerate(gathered):
                    assert torch.equal(block, values(rank, lengths[rank], dtype))


def results_are_copies(engine: Engine) -> None:
    """Writing into what came out must not reach what went in: the caller's buckets live on."""
    mine = torch.ones(4)
    engine.allgather(mine)[engine.rank].zero_()
    engine.alltoall([mine] * engine.world_size)[engine.rank].zero_()
    engine.reduce_scatter(mine).zero_()
    assert torch.equal(mine, torch.ones(4))


def many_calls_in_a_row_stay_in_step(engine: Engine) -> None:
    tensor = torch.zeros(33)
    for turn in range(50):
        root = turn % engine.world_size
        tensor.fill_(float(turn + engine.rank))
        engine.broadcast(tensor, root)
        engine.allreduce(tensor)
        assert torch.equal(tensor, torch.full((33,), float((turn + root) * engine.world_size)))
        blocks = engine.allgather(torch.full((turn % 3,), turn))
        assert [block.tolist() for block in blocks] == [[turn] * (turn % 3)] * engine.world_size


def another_thread_may_call(engine: Engine) -> None:
    """The communication thread of the pipeline is not the main thread, also not where MPI was started."""
    tensor, errors = torch.ones(100), []

    def work() -> None:
        try:
            engine.allreduce(tensor)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not errors
    assert torch.equal(tensor, torch.full((100,), float(engine.world_size)))


def each_call_is_noted(engine: Engine) -> None:
    engine.take_calls()
    engine.allreduce(torch.ones(10))
    engine.allgather(torch.ones(2, dtype=torch.uint8))
    calls = engine.take_calls()
    n = engine.world_size
    assert [(call.verb, call.algorithm) for call in calls] == [("allreduce", "auto"), ("allgather", "auto")]
    assert [call.sent_bytes for call in calls] == [2 * (n - 1) * 40 // n, (n - 1) * 2]
    assert all(call.seconds >= 0 for call in calls)
    assert engine.pending == "after allgather (auto) of 2 bytes"
    assert engine.take_calls() == []
    engine.allreduce(torch.ones(1))
    with engine.aside() as aside:
        engine.allgather(torch.ones(2, dtype=torch.uint8))
    engine.allreduce(torch.ones(2))
    assert [call.verb for call in aside] == ["allgather"]
    assert [call.tensor_bytes for call in engine.take_calls()] == [4, 8]


def what_cannot_be_done_is_a_typed_error(engine: Engine) -> None:
    for algorithm in ALGORITHMS:
        if algorithm not in engine.capabilities.algorithms:
            with pytest.raises(UnsupportedError, match=f"cannot force algorithm '{algorithm}'"):
                engine.allreduce(torch.ones(3), algorithm)
    lengths = [3] * engine.world_size
    for algorithm in set(BROADCASTS) - set(engine.capabilities.broadcasts):
        with pytest.raises(UnsupportedError, match=f"cannot force algorithm '{algorithm}' of broadcast"):
            engine.broadcast(torch.ones(3), 0, algorithm)
    for algorithm in set(ALLGATHERS) - set(engine.capabilities.allgathers):
        with pytest.raises(UnsupportedError, match=f"cannot force algorithm '{algorithm}' of allgather"):
            engine.allgather(torch.ones(3), lengths, algorithm)
    for dtype in ALL_DTYPES:
        if dtype not in engine.capabilities.sum_dtypes:
            with pytest.raises(UnsupportedError, match="cannot sum"):
                engine.allreduce(torch.ones(3, dtype=dtype))
            with pytest.raises(UnsupportedError, match="cannot sum"):
                engine.reduce_scatter(torch.ones(3, dtype=dtype))
    assert engine.take_calls() == []


def bad_arguments_are_config_errors(engine: Engine) -> None:
    """Found on the rank itself, before a byte moves, so that no rank is left waiting."""
    engine.take_calls()
    with pytest.raises(ConfigError, match="unknown algorithm 'bubble'"):
        engine.allreduce(torch.ones(3), "bubble")
    with pytest.raises(ConfigError, match="unknown algorithm 'ring'; known of broadcast are auto, binomial"):
        engine.broadcast(torch.ones(3), 0, "ring")
    with pytest.raises(ConfigError, match="unknown algorithm 'tree'; known of allgather are auto, ring, bruck"):
        engine.allgather(torch.ones(3), algorithm="tree")
    for lengths in (None, [3 + (rank != engine.rank) for rank in range(engine.world_size)]):
        if engine.capabilities.allgathers and (lengths is None or engine.world_size > 1):
            with pytest.raises(ConfigError, match="needs equal lengths"):
                engine.allgather(torch.ones(3), lengths, "ring")
    with pytest.raises(ConfigError, match="root"):
        engine.broadcast(torch.ones(3), engine.world_size)
    with pytest.raises(ConfigError, match="root"):
        engine.broadcast(torch.ones(3), -1)
    for tensor in (torch.ones(2, 3), torch.ones(8)[::2], torch.tensor(1.0)):
        for verb in (engine.allreduce, engine.allgather, engine.reduce_scatter):
            with pytest.raises(ConfigError, match="contiguous"):
                verb(tensor)
        with pytest.raises(ConfigError, match="contiguous"):
            engine.broadcast(tensor, 0)
        with pytest.raises(ConfigError, match="contiguous"):
            engine.alltoall([tensor] * engine.world_size)
    with pytest.raises(ConfigError, match="parts of one dtype"):
        engine.alltoall([torch.ones(1)] * (engine.world_size + 1))
    with pytest.raises(ConfigError, match="lengths"):
        engine.allgather(torch.ones(3), [4] * engine.world_size)
    with pytest.raises(ConfigError, match="lengths"):
        engine.alltoall([torch.ones(3)] * engine.world_size, [4] * engine.world_size)
    if "gather" in engine.capabilities.verbs:
        for wrong in ([4] * engine.world_size, [3] * (engine.world_size + 1)):
            with pytest.raises(ConfigError, match="lengths"):
                engine.gather(torch.ones(3), 0, wrong)
    assert engine.take_calls() == []


def control_takes_tensors_on_the_cpu(engine: Engine) -> None:
    engine.take_calls()
    mine = torch.full((2,), float(engine.rank))
    assert (engine.control.rank, engine.control.world_size) == (engine.rank, engine.world_size)
    assert [block.tolist() for block in engine.control.allgather(mine)] == [[r, r] for r in range(engine.world_size)]
    assert [call.verb for call in engine.take_calls()] == ["allgather"], "it is recorded in the engine itself"
    assert engine.device.type in engine.capabilities.devices


def hosts_are_numbered_by_rank(engine: Engine) -> None:
    """All ranks of these tests share a host."""
    engine.take_calls()
    assert engine.locate() == (0,) * engine.world_size
    assert engine.hosts == engine.capabilities.hosts == (0,) * engine.world_size
    assert engine.take_calls() == [], "where a rank runs belongs to no step"
    assert engine.ranks[engine.rank] < engine.job_size
    assert sorted(set(engine.ranks)) == list(engine.ranks)


def what_cannot_be_split_says_so(engine: Engine) -> bool:
    if not engine.capabilities.splits:
        with pytest.raises(UnsupportedError, match=f"the {engine.name} engine cannot be split into smaller groups"):
            engine.split(0)
    return not engine.capabilities.splits


def ranks_of_one_color_form_an_engine(engine: Engine) -> None:
    """By parity, by halves, each alone, all together: collectives of several groups run at once."""
    if what_cannot_be_split_says_so(engine):
        return
    n, rank = engine.world_size, engine.rank
    colorings = ([r % 2 for r in range(n)], [r // max(1, n // 2) for r in range(n)], [-r for r in range(n)], [7] * n)
    for colors in colorings:
        part = engine.split(colors[rank])
        assert part is not None
        members = [r for r in range(n) if colors[r] == colors[rank]]
        assert (part.rank, part.world_size) == (members.index(rank), len(members))
        assert list(part.ranks) == [engine.ranks[r] for r in members]
        assert part.job_size == engine.job_size
        assert part.allgather_json(rank) == members
        assert part.locate() == (0,) * len(members)
        for numel in (0, 1, 1001):
            tensor = values(rank, numel)
            part.allreduce(tensor)
            assert_sum(tensor, sum((values(r, numel).double() for r in members), torch.zeros(numel).double()))
            blocks = part.allgather(values(rank, numel))
            assert all(torch.equal(block, values(r, numel)) for r, block in zip(members, blocks, strict=True))
            root = len(members) - 1
            tensor = values(rank, numel)
            part.broadcast(tensor, root)
            assert torch.equal(tensor, values(members[root], numel))
        received = part.alltoall([torch.tensor([rank, r]) for r in members])
        assert [block.tolist() for block in received] == [[r, rank] for r in members]
        part.close()
    with pytest.raises(ConfigError, match=rf"whole number or None, not 'red' \(rank {n - 1}\)"):
        engine.split("red" if rank == n - 1 else 0)  # type: ignore[arg-type]


def who_takes_part_in_no_group_gets_none(engine: Engine) -> None:
    """And does not keep the others from making groups afterwards."""
    if what_cannot_be_split_says_so(engine):
        return
    first = engine.split(None if engine.rank else 5)
    assert (first is None) == (engine.rank > 0)
    if first is not None:
        assert (first.rank, first.world_size, first.hosts) == (0, 1, (0,))
    everybody = engine.split(1)
    assert everybody is not None
    tensor = torch.ones(3)
    everybody.allreduce(tensor)
    assert torch.equal(tensor, torch.full((3,), float(engine.world_size)))
    assert engine.split(None) is None


def a_twin_works_beside_it(engine: Engine) -> None:
    """Two threads, each with its own engine, whose collectives come in another order on other ranks."""
    if what_cannot_be_split_says_so(engine):
        with pytest.raises(UnsupportedError, match="unset HVD_COMPRESS_IN_FLIGHT"):
            engine.twin()
        return
    engine.locate()
    engine.take_calls()
    twin = engine.twin()
    assert (twin.rank, twin.world_size, list(twin.ranks)) == (engine.rank, engine.world_size, list(engine.ranks))
    assert twin.hosts == engine.hosts
    go_on = threading.Event()
    sums = torch.full((1001,), float(engine.rank))

    def beside() -> None:
        if engine.rank == 0:
            go_on.wait(60)
        twin.allreduce(sums)

    thread = threading.Thread(target=beside)
    thread.start()
    for _ in range(3):
        assert engine.allgather_json(engine.rank) == list(range(engine.world_size))
    go_on.set()
    thread.join(60)
    n = engine.world_size
    assert torch.equal(sums, torch.full((1001,), n * (n - 1) / 2))
    assert [call.verb for call in twin.take_calls()] == ["allreduce"]
    assert engine.take_calls() == []


def collectives_of_a_part_are_recorded_in_the_whole(engine: Engine) -> None:
    if what_cannot_be_split_says_so(engine):
        return
    engine.take_calls()
    part = engine.split(engine.rank % 2)
    assert part is not None
    assert engine.take_calls() == [], "to split belongs to no step"
    n = part.world_size
    engine.allreduce(torch.ones(10))
    part.allreduce(torch.ones(6))
    grandchild = part.split(0)
    assert grandchild is not None
    grandchild.allgather(torch.ones(2, dtype=torch.uint8))
    assert engine.pending == part.pending == "after allgather (auto) of 2 bytes"
    with engine.aside() as aside:
        part.allreduce(torch.ones(2))
    assert [call.tensor_bytes for call in aside] == [8]
    calls = engine.take_calls()
    assert [(call.verb, call.tensor_bytes) for call in calls] == [
        ("allreduce", 40),
        ("allreduce", 24),
        ("allgather", 2),
    ]
    assert [call.sent_bytes for call in calls[1:]] == [2 * (n - 1) * 24 // n, (n - 1) * 2]
    assert part.take_calls() == []
    engine.place = "step 3"
    assert grandchild.place == "step 3"
    part.lost, lost = "the transport is gone", engine.lost
    for one in (engine, part, grandchild):
        with pytest.raises(CommunicationError, match="the transport is gone"):
            one.allreduce(torch.ones(1))
    engine.lost = lost
    part.close()
    part.close()


PROMISES: tuple[Callable[[Engine], None], ...] = (
    allreduce_sums_and_leaves_the_same_bits,
    allgather_keeps_lengths_order_and_dtype,
    broadcast_replaces_all_by_the_root,
    forced_broadcasts_and_allgathers_move_the_same,
    alltoall_delivers_each_part,
    less_than_the_most_arrives,
    reduce_scatter_returns_this_ranks_shard,
    gather_brings_all_to_the_root,
    results_are_copies,
    many_calls_in_a_row_stay_in_step,
    another_thread_may_call,
    each_call_is_noted,
    what_cannot_be_done_is_a_typed_error,
    bad_arguments_are_config_errors,
    control_takes_tensors_on_the_cpu,
    hosts_are_numbered_by_rank,
    ranks_of_one_color_form_an_engine,
    who_takes_part_in_no_group_gets_none,
    a_twin_works_beside_it,
    collectives_of_a_part_are_recorded_in_the_whole,
)
