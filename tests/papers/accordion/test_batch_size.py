"""Batch sizes by Accordion's rule, on gradients whose norms are known."""

from __future__ import annotations

import copy
import math
from functools import partial

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

from hvd_compress import of
from hvd_compress.compression import Compression
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.papers.accordion.batch_size import BatchSizeSchedule
from tests.harness import backward, make_optimizer, make_parameters

SAMPLES, SMALL, LARGE = 40, 4, 16


def batches_of(rank: int = 0, ranks: int = 1) -> BatchSampler:
    data = TensorDataset(torch.arange(SAMPLES))
    return BatchSampler(DistributedSampler(data, ranks, rank, shuffle=False), SMALL, drop_last=False)


def plain(norms: list[float], **options: object) -> list[tuple[int, float]]:
    """Return batch size and learning rate of each epoch, of gradients whose sum has these norms."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer, batches = torch.optim.SGD([parameter], lr=0.1), batches_of()
    schedule, seen = BatchSizeSchedule(optimizer, batches, LARGE, **options), []  # type: ignore[arg-type]
    for norm in norms:
        seen.append((batches.batch_size, round(optimizer.param_groups[0]["lr"], 6)))
        for _ in range(2 if schedule.is_large else 8):  # steps of an epoch
            parameter.grad = torch.tensor([norm, 0.0])
            schedule.step()
        schedule.end_epoch()
    return seen


def test_batch_and_rate_are_scaled_together() -> None:
    small, large = (SMALL, 0.1), (LARGE, 0.4)
    assert plain([1.0, 1.1, 1.2, 3.0, 2.9, 2.8], every=1) == [small, small, large, large, small, large]
    assert plain([1.0, 9.0, 1.1, 9.0, 9.0, 1.0], every=2) == [small, small, small, large, large, small]


def test_a_step_that_is_not_finite_is_in_no_mean() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer, batches = torch.optim.SGD(parameters, lr=0.1), batches_of()
    schedule, seen = BatchSizeSchedule(optimizer, batches, LARGE, every=1, eta=0.01), []
    for epoch in range(3):
        for step in range(8):
            for parameter in parameters:
                parameter.grad = torch.ones(2)
            if epoch == step == 1:
                parameters[0].grad[1] = math.nan
            schedule.step()
        schedule.end_epoch()
        seen.append(batches.batch_size)
    assert seen == [SMALL, LARGE, LARGE]


def test_an_epoch_without_a_gradient_is_a_mistake() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    schedule = BatchSizeSchedule(torch.optim.SGD([parameter], lr=0.1), batches_of(), LARGE, every=2)
    schedule.step()  # behind zero_grad()
    with pytest.raises(UsageError, match=r"before optimizer.zero_grad\(\)"):
        schedule.end_epoch()


def test_a_decayed_rate_gets_small_batches() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer, batches = torch.optim.SGD([parameter], lr=0.1), batches_of()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1 if epoch >= 4 else 1.0)
    schedule, seen = BatchSizeSchedule(optimizer, batches, LARGE, every=1, scheduler=scheduler), []
    for _ in range(7):
        seen.append((batches.batch_size, round(optimizer.param_groups[0]["lr"], 6)))
        parameter.grad = torch.ones(2)
        schedule.step()
        optimizer.step()
        scheduler.step()
        schedule.end_epoch()
    small, large = (SMALL, 0.1), (LARGE, 0.4)
    assert seen == [small, small, large, large, (SMALL, 0.01), (LARGE, 0.04), (LARGE, 0.04)]


def test_it_drives_a_loader() -> None:
    batches = batches_of(rank=1, ranks=2)
    loader = DataLoader(TensorDataset(torch.arange(SAMPLES)), batch_sampler=batches)
    assert [len(batch) for (batch,) in loader] == [4] * 5
    assert len(loader) == 5
    batches.batch_size = 8
    assert [len(batch) for (batch,) in loader] == [8, 8, 4]
    assert len(loader) == 3
    batches.drop_last = True
    assert [len(batch) for (batch,) in loader] == [8, 8]
    assert len(loader) == 2


def test_ranks_decide_alike_though_one_has_other_figures() -> None:
    def body(engine: InProcessEngine) -> list[int]:
        parameters = make_parameters()
        made = partial(make_optimizer, parameters, Compression.dense(), lambda: engine)
        optimizer, batches = made(engine.rank, engine.world_size), batches_of(engine.rank, 2)
        schedule, seen = BatchSizeSchedule(optimizer, batches, LARGE, every=1, eta=0.2), []
        with pytest.raises(UsageError, match="before their first step"):
            of(optimizer).gather_figures([1.0])
        for step in range(8):
            optimizer.zero_grad()
            backward(parameters, engine.rank, 0)
            optimizer.step()
            if engine.rank == 0 and step == 4:  # its sum alone is another one
                for parameter in parameters.values():
                    parameter.grad.mul_(3.0)
            schedule.step()
            schedule.end_epoch()
            seen.append(batches.batch_size)
        return seen

    first, second = run_ranks(2, body)
    assert first == second
    assert {SMALL, LARGE} == set(first)


def test_it_goes_on_from_its_state() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    schedule = BatchSizeSchedule(optimizer, batches_of(), LARGE, every=1)
    for _ in range(2):
        parameter.grad = torch.ones(2)
        schedule.step()
        schedule.end_epoch()
    assert schedule.is_large
    saved, rates = copy.deepcopy(schedule.state_dict()), copy.deepcopy(optimizer.state_dict())
    again = torch.optim.SGD([parameter], lr=0.1)
    again.load_state_dict(rates)
    batches = batches_of()
    resumed = BatchSizeSchedule(again, batches, LARGE, every=1)
    resumed.load_state_dict(saved)
    assert batches.batch_size == LARGE
    resumed._switch(False)
    assert again.param_groups[0]["lr"] == pytest.approx(0.1)
    with pytest.raises(ConfigError, match="no state of a schedule"):
        resumed.load_state_dict({"norm": 1.0})


@pytest.mark.parametrize(
    ("large", "options", "words"),
    [
        (4, {}, "large = 4 is not a whole number of samples, 5 or more: a small batch has 4"),
        (0, {}, "large = 0 is not a whole number of samples, 5 or more"),
        (True, {}, "large = True is not a whole number"),
        (16.0, {}, "large = 16.0 is not a whole number"),
        (16, {"eta": -1}, "eta = -1"),
        (16, {"eta": 50}, "1 at most: 0.5 is 50 %"),
        (16, {"gather": 3}, "gather = 3 must take figures"),
        (16, {"every": 0}, "every = 0"),
    ],
)
def test_what_is_no_schedule(large: int, options: dict[str, int], words: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(ConfigError, match=words):
        BatchSizeSchedule(optimizer, batches_of(), large, **options)


def test_rates_of_groups_that_share_a_tensor_and_gradients_of_all_kinds() -> None:
    rate = torch.tensor(0.1)
    real, sparse, complex_ = (
        torch.nn.Parameter(torch.zeros(3, dtype=d)) for d in (torch.float32,) * 2 + (torch.cfloat,)
    )
    groups = [{"params": [each], "lr": rate} for each in (real, sparse, complex_)]
    optimizer, batches = torch.optim.SGD(groups), batches_of()
    schedule = BatchSizeSchedule(optimizer, batches, LARGE, every=1)
    for _ in range(2):
        for _ in range(2):
            real.grad, complex_.grad = torch.ones(3), torch.ones(3, dtype=torch.cfloat)
            sparse.grad = torch.sparse_coo_tensor([[1]], [2.0], (3,), check_invariants=True)
            schedule.step()
        schedule.end_epoch()
    assert schedule.is_large
    assert [float(group["lr"]) for group in optimizer.param_groups] == pytest.approx([0.4] * 3)


def test_a_scheduler_without_rates_to_scale() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ConfigError, match="a ReduceLROnPlateau has no base_lrs"):
        BatchSizeSchedule(optimizer, batches_of(), LARGE, scheduler=scheduler)


def test_what_cannot_be_scaled_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer, batches = torch.optim.SGD(model.parameters(), lr=0.1), batches_of()
    with pytest.raises(ConfigError, match="a Linear has no learning rates"):
        BatchSizeSchedule(model, batches, LARGE)  # type: ignore[arg-type]
    data = TensorDataset(torch.arange(SAMPLES))
    for wrong in (DataLoader(data, batch_size=SMALL), DistributedSampler(data, 1, 0), SMALL):
        with pytest.raises(ConfigError, match=r"has no batch_size that can be changed: pass torch's BatchSampler"):
            BatchSizeSchedule(optimizer, wrong, LARGE)  # type: ignore[arg-type]
    batches.drop_last = True
    BatchSizeSchedule(optimizer, batches, SAMPLES)
    with pytest.raises(ConfigError, match="more than the 40 samples of this rank: no batch would be left"):
        BatchSizeSchedule(optimizer, batches, SAMPLES + 1)


@pytest.mark.parametrize(
    "name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "HOROVOD_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"]
)
def test_several_ranks_must_have_what_lets_them_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod's own optimizer, of Compression.none, offers nothing."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    monkeypatch.setenv(name, "1")
    BatchSizeSchedule(optimizer, batches_of(), LARGE)
    monkeypatch.setenv(name, "2")
    with pytest.raises(ConfigError, match=r"gather= is missing, .* gather=hvd\.allgather_object"):
        BatchSizeSchedule(optimizer, batches_of(), LARGE)
    BatchSizeSchedule(optimizer, batches_of(), LARGE, gather=lambda figures: [list(figures)])


@pytest.mark.parametrize(
    ("changed", "words"), [({"norm": "a"}, "what is no number"), ({"rates": [0.1, 0.1]}, "rates of 2 groups, and .* 1")]
)
def test_a_state_that_does_not_fit_is_refused(changed: dict[str, object], words: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    schedule = BatchSizeSchedule(optimizer, batches_of(), LARGE)
    before = schedule.state_dict()
    with pytest.raises(ConfigError, match=words):
        schedule.load_state_dict({**before, **changed})
    assert repr(schedule.state_dict()) == repr(before)
