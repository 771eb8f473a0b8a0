"""All options of Espresso's tree, carried out: what ranks hold between tasks, and what comes of gradients."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

import pytest
import torch

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Work
from hvd_compress.compressors import (
    DGC,
    QSGD,
    BlockQuantizer,
    Cast,
    Compressor,
    EFSign,
    Input,
    PowerSGD,
    SignSGD,
    Threshold,
    TopK,
)
from hvd_compress.cost.paths import Path
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError
from hvd_compress.feedback.residual import Residual
from hvd_compress.feedback.states import BucketState
from hvd_compress.papers.espresso.by_option import ByOption
from hvd_compress.papers.espresso.options import Constraints, options
from hvd_compress.papers.espresso.tree.feedback import PartCompressor
from hvd_compress.papers.espresso.tree.walk import parse, walk
from hvd_compress.payload import Payload
from tests.harness import COMPRESSORS
from tests.unit.collectives.steps import LAYOUT, NUMEL, Step, gradient_of, steps

STEPS = 3
PLACES = {
    "2 hosts": (0, 0, 1, 1),
    "by turns": (0, 1, 0, 1),
    "3 a host": (0, 0, 0, 1, 1, 1),
    "1 host": (0, 0, 0),
    "1 rank each": (0, 1, 2),
    "1 rank": (0,),
}
NAMES = [option.path for option in options(Constraints(devices=("training",)))]
DENSE = [name for name in NAMES if "comp" not in name]
COMPRESSED = [name for name in NAMES if "comp" in name]
CARRIED = [name for name, compressor in COMPRESSORS.items() if compressor.compresses and ByOption.carries(compressor)]


@dataclass(frozen=True)
class Seen(Step):
    """One step of one rank, and its calls with their bytes."""

    calls: list[tuple[str, int]]


def train(engine: InProcessEngine, compressor: Compressor, option: str, **arguments: object) -> list[Seen]:
    """Exchange one bucket for some steps; arguments as `steps`."""
    history = []
    for step in steps(engine, compressor, option, STEPS, **arguments):
        calls = [(call.verb, call.tensor_bytes) for call in engine.take_calls()]
        history.append(Seen(step.result, step.residual, step.finite, calls))
    return history


def exchange(compressor: Compressor, option: str, place: str = "2 hosts", **arguments: object) -> list[list[Seen]]:
    hosts = PLACES[place]
    return run_ranks(len(hosts), lambda engine: train(engine, compressor, option, **arguments), hosts=hosts)


def check_alike(ranks: list[list[Seen]]) -> None:
    for step in range(STEPS):
        assert all(torch.equal(history[step].result, ranks[0][step].result) for history in ranks)
        assert all(history[step].finite for history in ranks)


def gradients(size: int) -> torch.Tensor:
    return sum(gradient_of(rank, step).double() for step in range(STEPS) for rank in range(size))


def test_there_are_as_many_as_in_the_paper() -> None:
    assert (len(set(NAMES)), len(DENSE)) == (174, 9)


@pytest.mark.parametrize("hosts", [*PLACES.values(), tuple(rank // 4 for rank in range(16))], ids=str)
@pytest.mark.parametrize("numel", [1000, 7, 1, 0])
def test_every_option_gives_every_rank_the_sum_over_all(hosts: tuple[int, ...], numel: int) -> None:
    """walk() raises where a gradient is added twice or left out, or a part is lost."""
    for name in NAMES:
        rows = walk(name, numel, hosts)
        assert len(rows) == len(parse(name)) + 1
        assert {sum(held.numel for held in holding) for holding in rows[-1]} == {numel}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("option", DENSE)
def test_dense_options_average(option: str, place: str) -> None:
    ranks = exchange(Cast(), option, place)
    check_alike(ranks)
    size = len(PLACES[place])
    torch.testing.assert_close(size * sum(s.result.double() for s in ranks[0]), gradients(size), rtol=1e-5, atol=1e-5)


PLACED = [(option, "2 hosts") for option in COMPRESSED[::3]] + [(option, "1 rank each") for option in COMPRESSED[::21]]
"""walk() above looks at each option."""


@pytest.mark.parametrize(("option", "place"), PLACED)
def test_nothing_is_lost(option: str, place: str) -> None:
    """What was applied and what is remembered make up all gradients, whoever remembers it."""
    ranks, size = exchange(TopK(0.1), option, place), len(PLACES[place])
    check_alike(ranks)
    assert all(seen.result.any() for seen in ranks[0])
    applied = size * sum(seen.result.double() for seen in ranks[0])
    remembered = sum(history[-1].residual.double() for history in ranks)
    torch.testing.assert_close(applied + remembered, gradients(size), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("option", COMPRESSED[::4])
def test_with_a_ratio_of_1_it_is_the_average(option: str) -> None:
    ranks = exchange(TopK(1.0), option, "3 a host")
    check_alike(ranks)
    torch.testing.assert_close(6 * sum(s.result.double() for s in ranks[0]), gradients(6), rtol=1e-5, atol=1e-5)
    assert all(not history[-1].residual.any() for history in ranks)


@pytest.mark.parametrize("name", CARRIED)
@pytest.mark.parametrize("number", range(3))
def test_every_compressor_that_it_carries(name: str, number: int) -> None:
    """Each with other options: they take turns."""
    compressor, at = COMPRESSORS[name], 3 * CARRIED.index(name) + number
    option, place = COMPRESSED[at * 29 % len(COMPRESSED)], list(PLACES)[at % len(PLACES)]
    ranks, size = exchange(compressor, option, place), len(PLACES[place])
    check_alike(ranks)
    if compressor.error_feedback and name != "demo":
        applied = size * sum(seen.result.double() for seen in ranks[0])
        remembered = sum(history[-1].residual.double() for history in ranks)
        torch.testing.assert_close(applied + remembered, gradients(size), rtol=1e-3, atol=1e-3)


def test_stochastic_rounding_stays_right_on_average_after_two_compressions() -> None:
    """Random numbers of the second compression are others than those of the first, and alike where sums are.

    Each of 359 elements is an average of 3 steps; the mean error over elements has a standard error of about 0.01, and
    a bias of five of them is not chance (p < 1e-6).
    """
    option = "comp alltoall*@within decomp comp allgather*@across decomp comp allgather*@within decomp"
    ranks = exchange(QSGD(2), option)
    check_alike(ranks)
    signed = (4 * sum(s.result.double() for s in ranks[0]) - gradients(4)) * gradients(4).sign()
    assert abs(float(signed.mean())) < 5 * float(signed.std()) / NUMEL**0.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("option", [DENSE[3], DENSE[8], COMPRESSED[1], COMPRESSED[40], COMPRESSED[-1]])
def test_gradients_of_16_bits(option: str, dtype: torch.dtype) -> None:
    ranks = exchange(TopK(1.0) if "comp" in option else Cast(), option, dtype=dtype)
    check_alike(ranks)
    total = sum(gradient_of(rank, 0).to(dtype).double() for rank in range(4))
    assert ranks[0][0].result.dtype == dtype
    torch.testing.assert_close(4 * ranks[0][0].result.double(), total, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("option", [DENSE[0], DENSE[5], COMPRESSED[0], COMPRESSED[33], COMPRESSED[100]])
def test_a_nan_is_seen_by_all_and_remembered_by_nobody(option: str) -> None:
    ranks = exchange(TopK(0.1) if "comp" in option else Cast(), option, spoil=(3, 5))
    assert not any(seen.finite for history in ranks for seen in history)
    assert all(not history[-1].residual.any() for history in ranks)


OVERFLOWS = (
    "comp gather*@within allgather*@across decomp comp broadcast*@within decomp",
    "comp alltoall*@within decomp allreduce@across comp allgather*@within decomp",
)


@pytest.mark.parametrize("name", ["efsign", "efsign-bucket", "onebit", "topk"])
@pytest.mark.parametrize("option", OVERFLOWS)
def test_what_overflows_in_a_finite_step_is_not_remembered(option: str, name: str) -> None:
    """A sum of finite gradients may be more than fp32 holds; the steps after it are finite all the same."""

    def draw(rank: int, step: int) -> torch.Tensor:
        gradient = gradient_of(rank, step)
        if step == 1:
            gradient[358] = 3.3e38
        return gradient

    ranks = exchange(COMPRESSORS[name], option, draw=draw)
    assert all(history[2].finite for history in ranks)
    assert all(bool(torch.isfinite(seen.residual).all()) for history in ranks for seen in history)


@pytest.mark.parametrize("option", [COMPRESSED[0], COMPRESSED[12], COMPRESSED[33], COMPRESSED[70], COMPRESSED[-1]])
def test_a_coefficient_scales_what_comes_back(option: str) -> None:
    """In each step gradient + coefficient * residual is what is applied and what is remembered, over all ranks."""
    ranks, before = exchange(TopK(0.1), option, coefficient=0.25), torch.zeros(NUMEL, dtype=torch.float64)
    for step in range(STEPS):
        corrected = sum(gradient_of(rank, step).double() for rank in range(4)) + 0.25 * before
        before = sum(history[step].residual.double() for history in ranks)
        torch.testing.assert_close(4 * ranks[0][step].result.double() + before, corrected, rtol=1e-4, atol=1e-4)
    assert before.any()


@pytest.mark.parametrize("option", [DENSE[0], DENSE[1], DENSE[2], DENSE[5], DENSE[8]])
def test_sums_of_16_bits_are_fp32_on_the_way(option: str) -> None:
    """In fp16 the sum of four ranks would overflow, and small gradients would be lost beside a large one."""
    drawn = torch.tensor([[40_000.0, 4096.0], [40_000.0, 1.0], [40_000.0, 1.0], [40_000.0, 1.0]])

    def whole(pair: torch.Tensor) -> torch.Tensor:
        return pair.repeat(NUMEL)[:NUMEL]

    for history in exchange(Cast(), option, draw=lambda rank, step: whole(drawn[rank]), dtype=torch.float16):
        assert torch.equal(history[0].result, whole(drawn.mean(0)).half())


WITHOUT_FEEDBACK = [DENSE[0], DENSE[5], DENSE[8], *COMPRESSED[:: len(COMPRESSED) // 8]]


@pytest.mark.parametrize("option", WITHOUT_FEEDBACK)
def test_what_is_remembered_from_before_is_sent_without_error_feedback_too(option: str) -> None:
    """All at once, in the first step. Powers of two travel by natural compression as they are."""
    compressor = COMPRESSORS["natural"] if "comp" in option else Cast()
    assert not compressor.error_feedback
    ranks = exchange(compressor, option, draw=lambda *_: torch.zeros(NUMEL), first=torch.ones(NUMEL))
    for history in ranks:
        assert torch.equal(history[0].result, torch.ones(NUMEL))
        assert not any(seen.result.any() for seen in history[1:])
        assert not any(seen.residual.any() for seen in history)


@pytest.mark.parametrize("option", [DENSE[0], COMPRESSED[0]])
def test_an_option_works_on_the_gradient_itself_where_that_is_fp32(option: str) -> None:
    compressor = TopK(0.1) if "comp" in option else Cast()
    for dtype in (torch.float32, torch.bfloat16):
        gradient, state = torch.ones(NUMEL, dtype=dtype), BucketState(Residual(torch.zeros(NUMEL), torch.zeros(NUMEL)))
        work = Work(gradient, LAYOUT, 0, 0, 1.0, state, 0, 1.0, 1, hosts=(0,))
        values = PartCompressor(compressor, work, 0, option).start()
        assert (values.data_ptr() == gradient.data_ptr()) == (dtype == torch.float32)
        assert values.dtype == torch.float32


def test_what_is_remembered_from_before_and_rounded_off_is_sent_later() -> None:
    first = torch.full((NUMEL,), 1 + 2.0**-12)
    ranks = exchange(Cast(), DENSE[0], draw=lambda *_: torch.zeros(NUMEL), first=first, dtype=torch.float16)
    for history in ranks:
        assert [float(seen.result.unique()) for seen in history] == [1.0, 2.0**-12, 0.0]
        assert [float(seen.residual.unique()) for seen in history] == [2.0**-12, 0.0, 0.0]


def test_random_numbers_are_alike_where_values_are_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are keyed by rank and by the number in the bucket's place: one key is one tensor, whoever rounds it."""
    seen: dict[tuple[int, int, int], list[torch.Tensor]] = {}
    encode, lock = QSGD.encode, threading.Lock()

    def spy(compressor: QSGD, work: Input) -> Payload:
        if isinstance(work, Work):  # and not the zeros of a template, which a process compresses once for each layout
            with lock:
                seen.setdefault((work.step, work.bucket, work.rank), []).append(work.gradient.clone())
        return encode(compressor, work)

    monkeypatch.setattr(QSGD, "encode", spy)
    exchange(QSGD(4), "comp alltoall*@within decomp comp allgather*@across decomp comp allgather*@within decomp")
    for values in seen.values():
        assert all(torch.equal(value, values[0]) for value in values)
    # Of a step: two pieces of each rank, a half of each rank, and two halves, each rounded by two ranks alike.
    counts = Counter(len(values) for (step, _, _), values in seen.items() if step == 0)
    assert counts == {1: 4 * 2 + 4, 2: 2}
    assert len({bucket for step, bucket, _ in seen if step == 0}) == 2 + 2 + 2


@pytest.mark.parametrize(("option", "verbs"), [
    ("reduce_scatter@within allreduce@across allgather@within", ["reduce_scatter", "allreduce", "allgather"]),
    (
        "reduce@within comp allgather*@across decomp broadcast@within",
        ["reduce_scatter", "gather", "allgather", "broadcast"],
    ),
    ("comp alltoall*@all decomp comp allgather*@all decomp", ["alltoall", "allgather"]),
    ("comp gather*@all decomp broadcast@all", ["gather", "broadcast"]),
])  # fmt: skip
def test_collectives_are_those_of_its_name_and_what_it_is_priced_by(option: str, verbs: list[str]) -> None:
    compressor = TopK(0.1) if "comp" in option else Cast()
    calls = exchange(compressor, option)[0][-1].calls
    assert [verb for verb, _ in calls] == verbs
    stages = collectives.stages(compressor, Path(option), LAYOUT, 4, PLACES["2 hosts"])
    assert [stage.verb for stage in stages] == verbs
    for stage, (verb, nbytes) in zip(stages, calls, strict=True):
        pieces = 4 if verb == "alltoall" else 1
        headers = 112 * pieces if "comp" in option and verb != "reduce_scatter" else 0
        assert stage.size <= nbytes + 4 <= stage.size + 8 + headers


def test_the_result_travels_in_the_dtype_of_the_gradient_and_is_priced_so() -> None:
    option = "reduce_scatter@within allreduce@across allgather@within"
    calls = exchange(Cast(), option, dtype=torch.float16)[0][-1].calls
    layout = Layout(LAYOUT.names, LAYOUT.shapes, torch.float16)
    stages = collectives.stages(Cast(), Path(option), layout, 4, PLACES["2 hosts"])
    assert [nbytes for _, nbytes in calls] == [stage.size for stage in stages]
    assert calls[2][1] == calls[1][1] / 2


@pytest.mark.parametrize(
    ("option", "compressor", "words"),
    [
        ("comp allgather@all decomp", TopK(0.1), "allgather@all cannot come there, where the tensor is compressed"),
        ("allgather*@all", TopK(0.1), "not compressed"),
        ("comp allgather*@all", TopK(0.1), "ends without a tensor"),
        ("decomp allreduce@all", TopK(0.1), "decomp cannot come there"),
        ("allsum@all", Cast(), "'allsum@all' is no task"),
        ("allreduce@host", Cast(), "'allreduce@host' is no task"),
        ("allreduce@all", TopK(0.1), "does not compress, and the compressor is"),
        ("comp allgather*@all decomp", Cast(), "compresses, and the compressor is"),
        ("allreduce@all", Cast(torch.bfloat16), "cannot carry"),
        ("comp allgather*@all decomp", PowerSGD(2), "cannot carry"),
        ("comp allgather*@all decomp", SignSGD(), "cannot carry"),
        ("comp allgather*@all decomp", DGC(0.1), "cannot carry"),
        ("comp allgather*@all decomp", Threshold(1.0), "cannot carry"),
    ],
)
def test_what_is_no_option_or_does_not_fit(option: str, compressor: Compressor, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        collectives.build(compressor, Path(option))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("reduce_scatter@all", "does not give every rank the sum"),
        ("allreduce@within", "does not give every rank the sum"),
        ("allreduce@all allreduce@all", "twice"),
        ("comp alltoall*@all allgather*@within decomp", "does not give every rank the sum|no parts of one sum"),
    ],
)
def test_tasks_that_lose_or_double_a_gradient(option: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        walk(option, 100, PLACES["2 hosts"])


def test_hosts_with_different_numbers_of_ranks() -> None:
    name = "reduce_scatter@within allreduce@across allgather@within"
    with pytest.raises(ConfigError, match="as many ranks on each host, and the hosts of this job have 2, 1"):
        walk(name, 100, (0, 0, 1))
    assert walk("allreduce@all", 100, (0, 0, 1))


def test_fused_kernels_give_the_bits_of_the_collectives_that_exist() -> None:
    """Where a collective of its own does the same, the result is the same, to the bit."""
    for compressor in (TopK(0.1), EFSign(), BlockQuantizer(4)):
        ours = exchange(compressor, "comp allgather*@all decomp")
        other = exchange(compressor, "allgather")
        for mine, theirs in zip(ours, other, strict=True):
            assert all(torch.equal(a.result, b.result) for a, b in zip(mine, theirs, strict=True))
            assert all(torch.equal(a.residual, b.residual) for a, b in zip(mine, theirs, strict=True))
