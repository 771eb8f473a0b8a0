"""Parameters gathered in few bits over four ranks: on hosts, among replicas."""

from __future__ import annotations

import tests.unit.frontends.fsdp.supported  # noqa: F401

# isort: split

from functools import partial

import pytest
import torch
import torch.distributed as dist

import hvd_compress.fsdp as hc
from hvd_compress.errors import ConfigError
from hvd_compress.frontends.fsdp.api import SEARCH_STEPS
from hvd_compress.frontends.fsdp.by_hosts import HostGather, peers
from hvd_compress.frontends.fsdp.gathers import SEARCHED, Gathers
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.fsdp.gathered import C, trained, watched
from tests.unit.frontends.fsdp.rounded import install
from tests.unit.frontends.fsdp.training import (
    BLOCKS,
    FORMS,
    adam,
    gathered,
    gradients,
    loss_of,
    mesh_of,
    parameters,
    sharded,
    train,
)


def check_four(rank: int) -> None:
    over_hosts(rank)
    for form in FORMS:
        within_a_host(rank, form)
        among_replicas(rank, form)
    replicas_that_differ(rank)
    replicas_that_search(rank)


@pytest.mark.level2
def test_four_ranks() -> None:
    run_ranks(check_four, ranks=4)


def over_hosts(rank: int) -> None:
    """Each rank gets the messages of all, however they lie on hosts."""
    for hosts in ("aabb", "abbb", "abab", "aaaa", "abcd"):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("hvd_compress.frontends.fsdp.by_hosts.host_identity", partial(hosts.__getitem__, rank))
            gather = HostGather(dist.group.WORLD, 60.0)  # type: ignore[arg-type]
        messages = [torch.arange(5, dtype=torch.uint8) + 16 * each for each in range(4)]
        expected = torch.stack(messages)
        if rank % 2:  # one after another, and both at once, as by prefetch
            found = [gather.start(messages[rank] + more)() for more in range(2)]
        else:
            found = [wait() for wait in [gather.start(messages[rank] + more) for more in range(2)]]
        for more, each in enumerate(found):
            assert torch.equal(each, expected + more), hosts


@pytest.mark.parametrize(
    ("hosts", "own", "across", "within"),
    [
        ([7, 7, 8, 8], 1, [3], [0]),
        ([7, 7, 8, 8, 9, 9], 2, [0, 4], [3]),
        ([7, 8, 9], 1, [0, 2], []),
        ([7, 7, 7], 1, [], [0, 2]),
        ([7, 8, 8], 1, [0, 2], []),
        ([7, 8, 7, 8], 0, [1, 2, 3], []),
    ],
)
def test_a_message_crosses_a_line_once(hosts: list[int], own: int, across: list[int], within: list[int]) -> None:
    assert peers(hosts, own) == (across, within)


def within_a_host(rank: int, form: Gathers) -> None:
    """With reshard_after_forward=2 the backward pass gathers what was rounded, over 2 ranks, as it is."""
    mesh = mesh_of(4)
    plain = install(sharded(mesh, reshard_after_forward=2), form)
    train(plain, adam(plain), range(4))
    model = trained(mesh, form, 4, reshard_after_forward=2)
    assert (parameters(model) - parameters(plain)).norm() < 1e-5 * parameters(plain).norm(), "sums in another order"
    with watched() as found:
        loss_of(model, 4).backward()
    assert sum(place for _, place in found) == BLOCKS + 1, "the root module, too"
    report, few = hc.of(model).last_step, max(size for size, place in found if not place)
    if not form.of_differences:
        blocks = sum(each.numel() for each in model.blocks.parameters())
        assert 3 * 4 * blocks / 4 + 4 * blocks / 2 < report.dense_parameter_bytes < 1.1 * 5 * blocks
        assert 3 * 8.25 / 8 * blocks / 4 + 4 * blocks / 2 < report.parameter_bytes < 1.1 * 2.8 * blocks
    assert sum(size > 3 * few for size, place in found if place) == BLOCKS, "as they are"


def replicas_that_differ(rank: int) -> None:
    """Replicas gather apart, and compare how in their first exchange."""
    model = hc.compress(sharded(mesh_of(2, 2)), C.int8(), parameters=(C.int8(), C.int4())[rank // 2])
    words = rf"parameters gathered as int8 in blocks of 64 on rank {rank % 2} and .* int4 in blocks of 64 on rank "
    with pytest.raises(ConfigError, match=words):
        loss_of(model, 0).backward()


def replicas_that_search(rank: int) -> None:
    """The slowest rank counts, of whatever replica."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HVD_COMPRESS_ADAPT", "1")
        model = hc.compress(sharded(mesh_of(2, 2)), C.dense(), parameters=C.auto())
    search = hc.of(model).front.gathers().search
    now, exact = [0.0], SEARCHED[0].words

    def clock() -> float:
        form = next(name for name in hc.of(model).front.gathers().figures())
        now[0] += 1.0 if form == f"gathers/{exact}" or rank < 3 else 5.0  # few bits are slow on rank 3 alone
        return now[0]

    search._clock = clock
    for step in range(SEARCH_STEPS + 4 * 2 * len(SEARCHED)):
        loss_of(model, step).backward()
    assert search.choice == 0, search.reason


def among_replicas(rank: int, form: Gathers) -> None:
    """A replica's ranks gather within it, and replicas hold the same."""
    model = hc.compress(sharded(mesh_of(2, 2)), C.int4(), parameters=form)
    losses = train(model, adam(model), range(6))
    assert losses[-1] < losses[0]
    found = gathered(parameters(model))
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])
    assert hc.of(model).last_step.parameter_bytes < 0.4 * hc.of(model).last_step.dense_parameter_bytes
    assert gradients(model).isfinite().all()
