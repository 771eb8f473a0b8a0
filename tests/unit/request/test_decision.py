from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import AllGather, AllToAll, ARTopk, Dense
from hvd_compress.compression import Compression
from hvd_compress.compressors import Cast, EFSign, Natural, PowerSGD, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Capabilities
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.policies.auto.arms import leaves_open
from hvd_compress.policies.fixed import decide
from hvd_compress.policies.open_paths import open_collectives
from hvd_compress.request.decision import Decision
from hvd_compress.request.request import Request

VERBS = ("allreduce", "allgather", "broadcast", "alltoall")
CAN = Capabilities(VERBS, ("ring",), (torch.float32, torch.float64))


@pytest.mark.parametrize("ratio", [0, 0.0, -0.1, 1.5, 10, float("nan"), float("inf"), "0.1", None, True])
def test_a_ratio_outside_its_range_is_refused(ratio: object) -> None:
    with pytest.raises(ConfigError, match="ratio"):
        TopK(ratio)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            Compression.topk(0.1, layerwise=True).by(collective="star", algorithm="ring", engine="mpi", device="cpu"),
            Request(TopK(0.1, True), "star", "ring", "mpi", "cpu"),
        ),
        (
            Compression.natural(error_feedback=True, seed=5).by(engine="mpi", device="cpu"),
            Request(Natural(True, 5), engine="mpi", device="cpu"),
        ),
        (
            Compression.of(EFSign()).by(collective="allgather", algorithm="bruck", engine="mpi", device="cpu"),
            Request(EFSign(), "allgather", "bruck", "mpi", "cpu"),
        ),
    ],
)
def test_what_is_asked_for_is_what_is_requested(found: Request, expected: Request) -> None:
    assert found == expected


@pytest.mark.parametrize("ratio", [1, 1.0, 1e-9, 0.5])
def test_a_ratio_within_its_range_keeps_at_least_one(ratio: float) -> None:
    assert TopK(ratio).kept(Layout.of(10)) == max(1, round(ratio * 10))
    assert TopK(ratio).kept(Layout.of(0)) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"collective": "stars"}, "unknown collective 'stars'; known here are auto, allgather, artopk, star, var"),
        ({"algorithm": "rings"}, "unknown algorithm 'rings'"),
        ({"engine": "nccl"}, "unknown engine 'nccl'"),
        ({"device": "tpu"}, "unknown device 'tpu'; known here are auto, cpu, cuda"),
        ({"collective": "allgather", "algorithm": "tree"}, "unknown algorithm 'tree'; known here are auto, "),
        ({"collective": "star", "algorithm": "bruck"}, "unknown algorithm 'bruck'"),
    ],
)
def test_unknown_words_are_refused(arguments: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Request(TopK(0.1), **arguments)


def test_what_cannot_be_summed_has_no_allreduce_to_name() -> None:
    with pytest.raises(ConfigError, match="travels by all-gather: leave it at 'auto'"):
        Request(EFSign(), algorithm="ring")


FORCING = Capabilities(VERBS, ("ring", "tree"), (torch.float32,), broadcasts=("pipeline_16k",), allgathers=("bruck",))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "allgather allgather-bruck star-?*"),
        ({"algorithm": "ring"}, "allgather allgather-bruck star-ring star-ring+pipeline_16k"),
        ({"collective": "allgather"}, "allgather allgather-bruck"),
        ({"collective": "var"}, "var-?*"),
        ({"collective": "star", "algorithm": "tree"}, "star-tree star-tree+pipeline_16k"),
    ],
)
def test_real_steps_choose_among_what_the_request_leaves_open(arguments: dict[str, str], expected: str) -> None:
    def spelled(word: str) -> list[str]:
        collective = word.removesuffix("-?*")
        every = [collective + a + b for a in ("", "-ring", "-tree") for b in ("", "+pipeline_16k")]
        return every if collective != word else [word]

    request = Request(TopK(0.1), **arguments)
    found = [str(each.path) for each in open_collectives(request, Layout.of(10), FORCING)]
    assert found == [name for word in expected.split() for name in spelled(word)]
    fixed = arguments.keys() == {"collective", "algorithm"}
    assert leaves_open(request) != fixed


def test_an_engine_that_can_carry_nothing_is_named() -> None:
    can = Capabilities(("allreduce",), (), (torch.float32,))
    with pytest.raises(ConfigError, match=r"no collective carries Cast.* over this engine, which has allreduce"):
        decide(Request(Cast(torch.bfloat16)), Layout.of(10), 2, can)
    assert decide(Request(Cast()), Layout.of(10, dtype=torch.float64), 2, can).path == Path("dense")


def test_powersgd_goes_by_allreduce_or_by_all_gather() -> None:
    assert decide(Request(PowerSGD()), Layout.of((100, 100)), 4, CAN).path == Path("allreduce")
    assert decide(Request(PowerSGD(), "allgather"), Layout.of((100, 100)), 4, CAN).path == Path("allgather")
    assert decide(Request(PowerSGD(), algorithm="ring"), Layout.of((100, 100)), 4, CAN).path == Path(
        "allreduce", "ring"
    )
    with pytest.raises(ConfigError, match="unknown collective 'star'; known here are auto, allgather, allreduce"):
        Request(PowerSGD(), "star")
    for collective in ("dense", "alltoall"):
        with pytest.raises(ConfigError, match="unknown collective"):
            Request(Cast(), collective)


def test_collectives_are_for_sparsifiers() -> None:
    with pytest.raises(ConfigError, match="unknown collective 'star'; known here are auto"):
        Request(EFSign(), "star")


@pytest.mark.parametrize(
    ("request_", "dtype", "size", "collective"),
    [
        (Request(TopK(0.1)), torch.float32, 2, "allgather"),
        (Request(TopK(0.1)), torch.float32, 3, "star"),
        (Request(TopK(0.1), algorithm="ring"), torch.float32, 2, "star"),
        (Request(TopK(0.1), "var"), torch.bfloat16, 2, "var"),
        (Request(TopK(0.1), "var"), torch.float64, 2, "dense"),
        (Request(TopK(0.1), "allgather", "bruck"), torch.float64, 2, "dense"),
        (Request(TopK(0.1), "artopk"), torch.float32, 2, "star"),
        (Request(EFSign()), torch.float16, 4, "allgather"),
        (Request(Cast(torch.bfloat16)), torch.float32, 4, "alltoall"),
        (Request(Cast()), torch.float32, 4, "dense"),
        (Request(Cast()), torch.float16, 4, "alltoall"),
    ],
)
def test_every_request_finds_a_collective_that_can_carry_it(
    request_: Request, dtype: torch.dtype, size: int, collective: str
) -> None:
    decision = decide(request_, Layout.of(100, dtype=dtype), size, CAN)
    assert decision.collective == collective
    assert decision.reason
    kinds = {"dense": Dense, "alltoall": AllToAll, "allgather": AllGather, "star": ARTopk, "var": ARTopk}
    assert isinstance(decision.build(), kinds[collective])


def test_an_algorithm_is_refused_where_nothing_is_reduced() -> None:
    with pytest.raises(ConfigError, match="all-to-all"):
        decide(Request(Cast(torch.bfloat16), algorithm="ring"), Layout.of(100), 4, CAN)


def test_a_decision_that_nothing_can_carry_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot carry"):
        Decision(EFSign(), Path("star")).build()


@pytest.mark.parametrize(
    ("asked", "gradients_on", "device"),
    [("auto", "cpu", "cpu"), ("auto", "cuda", "cuda"), ("cpu", "cuda", "cpu"), ("cuda", "cuda", "cuda")],
)
def test_compression_runs_where_the_gradients_are_unless_asked_otherwise(
    asked: str, gradients_on: str, device: str
) -> None:
    request = Request(TopK(0.1), device=asked)
    for dtype in (torch.float32, torch.float64):
        assert decide(request, replace(Layout.of(10, dtype=dtype), place=gradients_on), 2, CAN).device == device


def test_a_gpu_cannot_compress_what_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"device='cuda' asks for compression on a GPU of gradients on the CPU: move"):
        decide(Request(EFSign(), device="cuda"), Layout.of(10), 2, CAN)


def test_a_request_is_none_of_horovods_compressions() -> None:
    """Horovod asks `compress` of what allreduce(compression=) is given."""
    with pytest.raises(UsageError, match=r"allreduce\(\) takes Compression.none or Compression.fp16"):
        Compression.int4().compress(torch.ones(3))
