"""A DDP model that is profiled."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch.distributed as dist

import hvd_compress.ddp as hc
from hvd_compress.engines.select import choose_torch_engine
from hvd_compress.errors import UnsupportedError
from hvd_compress.profiler import measure_system
from hvd_compress.profiler.profiles import ModelProfile, SystemProfile, read, write
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal, compressed, flat, loss_of, make_model, optimizer_of

pytestmark = pytest.mark.level2

STEPS, SKIP = 3, 2


def profile(folder: Path) -> dict[str, str]:
    """The variables of a profile."""
    return {
        "HVD_COMPRESS_PROFILE": str(folder),
        "HVD_COMPRESS_PROFILE_STEPS": str(STEPS),
        "HVD_COMPRESS_PROFILE_SKIP": str(SKIP),
        "HVD_COMPRESS_CALIBRATION_S": "0.02",
    }


def train(rank: int, options: dict[str, bool], passes: int) -> list[float]:
    """Return all parameters after some steps of two models, of which the first one may be profiled."""
    ended = []
    for _ in range(2):
        model = compressed(make_model(), "allgather", **options)
        optimizer = optimizer_of(model)
        for step in range(STEPS + SKIP + 2):
            optimizer.zero_grad()
            for number in range(passes):
                with model.no_sync() if number < passes - 1 else nullcontext():
                    loss_of(model, rank, step * passes + number).backward()
            optimizer.step()
            check_ranks_equal(model.module, step)
        ended += [*flat(model).tolist(), len(hc.of(model).decisions)]
    return ended


@pytest.mark.parametrize(
    ("options", "passes"), [({}, 1), ({}, 2), ({"static_graph": True}, 1), ({"find_unused_parameters": True}, 1)]
)
def test_what_is_trained_is_the_same_and_the_first_model_is_profiled(
    options: dict[str, bool], passes: int, tmp_path: Path
) -> None:
    plain = run_ranks(train, options, passes, ranks=2)
    assert run_ranks(train, options, passes, ranks=2, **profile(tmp_path)) == plain
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compressor.json", "model.json", "system.json"]
    model = read(tmp_path / "model.json", ModelProfile)
    assert model.steps == STEPS
    assert [tensor.name.partition(".")[0] for tensor in model.tensors] == list("66442200")


def refused_first(rank: int) -> None:
    with pytest.raises(UnsupportedError, match="profile another compressor"):
        compressed(make_model(), "powersgd")
    train(rank, {}, 1)


def test_a_model_that_could_not_be_compressed_leaves_the_profile_to_the_next(tmp_path: Path) -> None:
    run_ranks(refused_first, ranks=2, **profile(tmp_path))
    assert (tmp_path / "model.json").exists()


def network(rank: int, path: Path) -> None:
    system = measure_system(choose_torch_engine(), 0.02)
    if dist.get_rank() == 0:
        write(path, system)


def test_the_network_of_a_job_without_this_package_is_measured(tmp_path: Path) -> None:
    run_ranks(network, tmp_path / "system.json", ranks=2)
    system = read(tmp_path / "system.json", SystemProfile)
    assert (system.hosts, system.ranks_per_host) == (1, 2)
    assert system.within.curves
