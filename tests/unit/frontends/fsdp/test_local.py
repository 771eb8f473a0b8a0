"""Local steps of FSDP2 on a mesh of two dimensions, 2 x 2 ranks: replicas exchange what their shards have learned."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

import copy
from typing import Any

import pytest
import torch

import hvd_compress
import hvd_compress.fsdp as hc
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from hvd_compress.frontends.fsdp.local import shards_of
from hvd_compress.local import LocalSteps
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.training import (
    STEPS,
    adam,
    compressed,
    end_loss,
    gathered,
    mesh_of,
    parameters,
    sharded,
    train,
)

ACROSS = [[0, 2], [1, 3]]
"""The ranks with the same shard."""


@pytest.mark.level2
def test_four_ranks() -> None:
    """One job for all: a process takes longer to begin than its checks."""
    run_ranks(check_all, ranks=4)


def check_all(rank: int) -> None:
    mesh = mesh_of(2, 2)
    for check in (one_step_a_round, learns_from_few_exchanges, resumes, averages, steps_become_synchronous, refused):
        check(mesh)


def alike(model: Any) -> bool:
    found = gathered(parameters(model))
    return all(torch.equal(found[first], found[other]) for first, other in ACROSS)


def around(mesh: Any, **options: Any) -> tuple[Any, torch.optim.Optimizer, LocalSteps]:
    model = sharded(mesh)
    optimizer = adam(model)
    return model, optimizer, hc.local_steps(model, optimizer, **options)


def one_step_a_round(mesh: Any) -> None:
    """It trains as plain HSDP. What is clipped would be each replica's gradient, and not their mean."""
    plain = sharded(mesh)
    train(plain, adam(plain), range(4), clip=1e9)
    model, optimizer, _ = around(mesh, every=1, compression=hc.Compression.dense())
    train(model, optimizer, range(4), clip=1e9)
    torch.testing.assert_close(parameters(model), parameters(plain), rtol=1e-4, atol=1e-5)
    assert alike(model)


def learns_from_few_exchanges(mesh: Any) -> None:
    """Replicas are apart between exchanges, agree at the end, and have learned."""
    expected = end_loss(compressed(mesh, None))
    for options in ({}, {"fragments": 2, "delay": 1}):
        model, optimizer, local = around(mesh, every=4, start_after=2, **options)
        losses = train(model, optimizer, range(STEPS - 1))
        assert not alike(model)
        local.finish()
        assert alike(model)
        assert sum(losses[-4:]) / 4 < expected + 0.25, losses
        report = hvd_compress.of(local).last_step
        assert report is not None
        assert report.sent_bytes < 4.5 / 32 * report.dense_bytes


def resumes(mesh: Any) -> None:
    """From the middle of a round, with a fragment on its way, to the bit."""
    options: dict[str, Any] = {"every": 4, "start_after": 2, "fragments": 2, "delay": 2}
    whole, optimizer, local = around(mesh, **options)
    train(whole, optimizer, range(5))
    assert local.state_dict()["rounds"]["in_flight"] is not None
    saved = copy.deepcopy((whole.state_dict(), optimizer.state_dict(), local.state_dict()))
    train(whole, optimizer, range(5, 10))
    model, again, resumed = around(mesh, **options)
    for part, state in zip((model, again, resumed), saved, strict=True):
        part.load_state_dict(state)
    train(model, again, range(5, 10))
    assert torch.equal(parameters(model), parameters(whole))


def averages(mesh: Any) -> None:
    model, optimizer, local = around(mesh, every=4, start_after=0)
    train(model, optimizer, range(3))
    own = parameters(model)
    with local.averaged():
        found, mean = gathered(own), parameters(model)
        for ranks in ACROSS:
            if torch.distributed.get_rank() in ranks:
                torch.testing.assert_close(mean, torch.stack([found[each] for each in ranks]).mean(0))
    assert torch.equal(parameters(model), own)


def steps_become_synchronous(mesh: Any) -> None:
    """Replicas then agree in all steps, as their optimizers do."""
    model, optimizer, _ = around(mesh, every=lambda step: 4 if step < 8 else 1, start_after=0)
    train(model, optimizer, range(11))
    assert alike(model)


def refused(mesh: Any) -> None:
    model = sharded(mesh)
    with pytest.raises(UnsupportedError, match="for each shard by itself"):
        hc.local_steps(model, adam(model), every="auto")
    with pytest.raises(ConfigError, match=r"call hvd_compress.fsdp.local_steps\(model, optimizer"):
        LocalSteps(adam(model), model)
    with pytest.raises(ConfigError, match="a mesh that has replicas itself, and these come from the manager"):
        shards_of(model, adam(model))
    flat = sharded(mesh_of(4))
    assert [each.shape for each in shards_of(flat, adam(flat))[0].values()]
    with pytest.raises(ConfigError, match="the model has one replica"):
        hc.local_steps(flat, adam(flat))
    twice, optimizer, _ = around(mesh)
    with pytest.raises(UsageError, match="take local steps already"):
        hc.local_steps(twice, optimizer)
    with pytest.raises(UsageError, match="take local steps already"):
        hc.compress(twice, hc.Compression.int4())
    hc.compress(model, hc.Compression.int4())
    with pytest.raises(ConfigError, match="leave it out for local steps"):
        hc.local_steps(model, adam(model))
    with pytest.raises(ConfigError, match=r"local_steps\(\) takes a model that fully_shard"):
        hc.local_steps(torch.nn.Linear(2, 2), adam(torch.nn.Linear(2, 2)))
