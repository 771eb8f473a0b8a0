"""Replicas that part are an error on every rank, which names rank, bucket and parameter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from hvd_compress import of
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import CommunicationError, ReplicaError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.request.request import Request
from hvd_compress.session.replicas import FIRST, UNSEEN, bit_sum
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, backward, make_optimizer, make_parameters

DENSE = REQUESTS["dense"]
RANKS = 3

Parameters = dict[str, torch.nn.Parameter]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
def test_a_sum_of_bits_depends_on_every_bit_and_on_no_order(dtype: torch.dtype) -> None:
    values = torch.randn(6, 5, 4, 3, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = bit_sum(values)
    assert torch.equal(bit_sum(values.contiguous(memory_format=torch.channels_last)), expected)
    assert torch.equal(bit_sum(values.transpose(0, 3)), expected)
    assert torch.equal(bit_sum(torch.cat([values, values])[6:]), expected)
    for element in range(0, values.numel(), 7):
        changed = values.clone().view(-1)
        bits = (torch.view_as_real(changed) if dtype.is_complex else changed).view(-1).view(torch.uint8)
        bits[element * (bits.numel() // values.numel())] ^= 1
        assert not torch.equal(bit_sum(changed), expected)
    assert bit_sum(values[:0]) == 0
    holed = values.clone()
    holed[1, 2] = torch.nan
    assert torch.equal(bit_sum(torch.where(torch.isnan(holed), -holed, holed)), bit_sum(holed))
    assert not torch.equal(bit_sum(holed), expected)


def start(engine: InProcessEngine, request: Request = DENSE, every: int = 3) -> tuple[Parameters, ReducingOptimizer]:
    parameters = make_parameters()
    settings = Settings(600, 60, adapt=True, calibration_s=0.0, check_every=every)
    made = make_optimizer(parameters, request, lambda: engine, engine.rank, engine.world_size, settings=settings)
    return parameters, made


def train(engine: InProcessEngine, parameters: Parameters, optimizer: ReducingOptimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(parameters, engine.rank, step)
        optimizer.step()


@pytest.mark.parametrize("name", ["dense", "topk-auto", "int8", "powersgd"])
@pytest.mark.parametrize(("parted", "told"), [(0, 2), (1, 4), (5, 7), (6, 10)])
def test_a_parameter_that_parts_is_an_error_on_every_rank(name: str, parted: int, told: int) -> None:
    """Exchanges 1, 3, 6 and 9 are checked, and what ranks find is taken in the next."""

    def body(engine: InProcessEngine) -> str:
        parameters, optimizer = start(engine, REQUESTS[name])
        train(engine, parameters, optimizer, range(parted + 1))
        if engine.rank == 1:
            with torch.no_grad():
                parameters["second.weight"][3, 4] += 1e-3
        train(engine, parameters, optimizer, range(parted + 1, told))
        before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        optimizer.zero_grad()
        backward(parameters, engine.rank, told)
        with pytest.raises(ReplicaError) as found:
            optimizer.step()
        assert all(torch.equal(parameter, before[name]) for name, parameter in parameters.items())
        with pytest.raises(CommunicationError, match="nothing is exchanged any more"):
            optimizer.step()
        return str(found.value)

    first, *others = run_ranks(RANKS, body)
    assert set(others) == {first}
    assert f"step {told - 1}: parameter 'second.weight' (bucket " in first
    assert "on rank 1 is not that of rank 0, and so are 0 more of 5" in first
    assert "HVD_COMPRESS_CHECK_EVERY=0" in first


def test_without_the_check_nothing_is_told_or_launched() -> None:
    def body(engine: InProcessEngine, every: int) -> int:
        """Return how many all-gathers there are, of which a dense exchange has none."""
        parameters, optimizer = start(engine, every=every)
        allgather, calls = engine._allgather, []
        engine._allgather = lambda *arguments: calls.append(1) or allgather(*arguments)  # type: ignore[method-assign]
        if not every:
            with torch.no_grad():
                parameters["odd"] += engine.rank
        train(engine, parameters, optimizer, range(1))
        handshake = len(calls)
        train(engine, parameters, optimizer, range(1, 9))
        return len(calls) - handshake

    assert run_ranks(RANKS, partial(body, every=0)) == [0] * RANKS
    assert run_ranks(RANKS, partial(body, every=3)) == [3] * RANKS


def test_results_that_differ_name_their_bucket() -> None:
    """As a network or a memory would change them that nobody else notices."""

    def body(engine: InProcessEngine) -> str:
        parameters, optimizer = start(engine)
        allreduce = engine._allreduce

        def damaged(tensor: torch.Tensor, algorithm: str) -> None:
            allreduce(tensor, algorithm)
            if engine.rank == 2 and of(optimizer).last_step is not None and tensor.numel() == 40:
                tensor[7] += 1e-6

        engine._allreduce = damaged  # type: ignore[method-assign]
        train(engine, parameters, optimizer, range(2))
        with pytest.raises(ReplicaError) as found:
            train(engine, parameters, optimizer, range(2, 3))
        return str(found.value)

    first, *others = run_ranks(RANKS, body)
    assert set(others) == {first}
    assert "step 1: the averaged gradients of bucket 0 (second.bias) on rank 2 are not those of rank 0" in first


def test_a_parameter_that_is_frozen_on_one_rank_is_said_to_be() -> None:
    def body(engine: InProcessEngine) -> str:
        parameters, optimizer = start(engine)
        train(engine, parameters, optimizer, range(1))
        if engine.rank == 2:
            parameters["first.bias"].requires_grad_(False)
        train(engine, parameters, optimizer, range(1, 4))
        with pytest.raises(ReplicaError) as found:
            train(engine, parameters, optimizer, range(4, 5))
        return str(found.value)

    for message in run_ranks(RANKS, body):
        assert "parameter 'first.bias' (bucket 2) on rank 2 is not that of rank 0" in message
        assert "It is frozen on rank 2 alone." in message


def test_ranks_that_round_in_other_ways_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Other processors and numbers of threads may round differently: that is no defect of the training."""

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = start(engine)
        own = optimizer._reducer.session.services.replicas
        sums = own._sums
        own._sums = lambda results: replace(sums(results), arithmetic=f"processor {engine.rank}")
        with torch.no_grad():
            parameters["odd"] += engine.rank * 1e-7
        train(engine, parameters, optimizer, range(8))

    run_ranks(RANKS, body)
    messages = [record.getMessage() for record in caplog.records if "may round differently" in record.getMessage()]
    assert len(messages) == 1, "rank 0, once"
    assert "processor 0 and processor 1 and processor 2" in messages[0]


def test_a_sparse_parameter_that_parts_is_in_no_bucket() -> None:
    def body(engine: InProcessEngine) -> str:
        rows = torch.nn.Embedding(6, 3, _weight=torch.full((6, 3), float(engine.rank == 1)), sparse=True)
        dense = make_parameters()
        settings = Settings(600, 60, check_every=3)
        made = {"rows": rows.weight, **dense}
        optimizer = make_optimizer(made, DENSE, lambda: engine, engine.rank, RANKS, settings=settings)

        def take(step: int) -> None:
            optimizer.zero_grad()
            rows(torch.tensor([0])).sum().backward()
            backward(dense, engine.rank, step)
            optimizer.step()

        take(0)
        take(1)
        with pytest.raises(ReplicaError) as found:
            take(2)
        return str(found.value)

    for message in run_ranks(RANKS, body):
        assert "step 1: parameter 'rows' on rank 1 is not that of rank 0" in message


def test_sparse_parameters_alone_are_compared() -> None:
    """No bucket lies in memory then."""

    def body(engine: InProcessEngine) -> None:
        rows = torch.nn.Embedding(6, 3, _weight=torch.ones(6, 3), sparse=True)
        settings = Settings(600, 60, check_every=1)
        optimizer = make_optimizer({"rows": rows.weight}, DENSE, lambda: engine, engine.rank, RANKS, settings=settings)

        def train() -> None:
            for step in range(6):
                optimizer.zero_grad()
                rows(torch.tensor([0])).sum().backward()
                optimizer.step()
                if (step, engine.rank) == (2, 1):
                    with torch.no_grad():
                        rows.weight[4, 1] += 1

        with pytest.raises(ReplicaError, match="parameter 'rows' on rank 1 is not that of rank 0"):
            train()

    run_ranks(RANKS, body)


def test_replicas_are_compared_while_a_ratio_is_profiled() -> None:
    def body(engine: InProcessEngine) -> int:
        parameters, optimizer = start(engine)
        taken = []

        def train() -> None:
            for step in range(20):
                taken.append(step)
                if step == 3:
                    of(optimizer).profile_ccr(15)
                if (step, engine.rank) == (5, 1):
                    with torch.no_grad():
                        parameters["odd"] += 5
                optimizer.zero_grad()
                backward(parameters, engine.rank, step)
                optimizer.step()

        with pytest.raises(ReplicaError):
            train()
        return len(taken)

    assert max(run_ranks(RANKS, body)) < 15


def test_a_rank_that_is_no_replica_is_left_out() -> None:
    """DDP's join() lets ranks without inputs take part, whose parameters stay behind until the end."""

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = start(engine)
        if engine.rank == 0:
            optimizer._reducer.session.services.replicas.is_replica = False
            with torch.no_grad():
                parameters["odd"] += 5
        train(engine, parameters, optimizer, range(8))

    run_ranks(RANKS, body)


def test_what_is_checked_costs_no_bytes_of_a_step() -> None:
    def body(engine: InProcessEngine) -> list[int]:
        parameters, optimizer = start(engine, every=1)
        sent = []
        for step in range(4):
            train(engine, parameters, optimizer, range(step, step + 1))
            sent.append(of(optimizer).last_step.sent_bytes)
        return sent

    for sent in run_ranks(RANKS, body):
        assert len(set(sent)) == 1


def noisy(engine: InProcessEngine, parameters: Parameters, optimizer: ReducingOptimizer, steps: range) -> None:
    """Train with a noise of this rank's own on a parameter while gradients are computed and exchanged."""
    for step in steps:
        optimizer.zero_grad()
        noise = 0.1 * torch.randn(parameters["odd"].shape, generator=torch.Generator().manual_seed(engine.rank))
        kept = parameters["odd"].detach().clone()
        parameters["odd"].data.add_(noise)
        backward(parameters, engine.rank, step)
        optimizer.synchronize()
        parameters["odd"].data.copy_(kept)
        with optimizer.skip_synchronize():
            optimizer.step()


@pytest.mark.parametrize("every", [1, 3])
def test_what_ranks_put_on_parameters_during_the_exchange_is_no_difference(every: int) -> None:
    def body(engine: InProcessEngine) -> torch.Tensor:
        parameters, optimizer = start(engine, every=every)
        noisy(engine, parameters, optimizer, range(9))
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])

    first, *others = run_ranks(RANKS, body)
    assert all(torch.equal(first, other) for other in others)


def test_a_parameter_that_parts_under_such_a_noise_is_named_and_no_other() -> None:
    def body(engine: InProcessEngine) -> str:
        parameters, optimizer = start(engine)
        noisy(engine, parameters, optimizer, range(5))
        if engine.rank == 1:
            with torch.no_grad():
                parameters["second.weight"][3, 4] += 1e-3
        noisy(engine, parameters, optimizer, range(5, 7))
        with pytest.raises(ReplicaError) as found:
            noisy(engine, parameters, optimizer, range(7, 8))
        return str(found.value)

    for message in run_ranks(RANKS, body):
        assert "step 6: parameter 'second.weight' (bucket " in message
        assert "and so are 0 more of 5" in message


def test_where_no_step_is_seen_the_difference_counts_in_the_end() -> None:
    """As with an optimizer that is none of torch's."""

    def body(engine: InProcessEngine) -> tuple[int, str]:
        parameters, optimizer = start(engine)
        with torch.no_grad():
            parameters["odd"] += engine.rank

        def exchange(steps: range) -> None:
            for step in steps:
                optimizer.zero_grad()
                backward(parameters, engine.rank, step)
                optimizer.synchronize()

        with pytest.raises(ReplicaError) as found:
            exchange(range(2 * UNSEEN))
        return of(optimizer).last_step.step, str(found.value)

    for step, message in run_ranks(RANKS, body):
        assert step == FIRST + UNSEEN - 1
        assert "step 1: parameter 'odd' (bucket 2) on ranks 1, 2 is not that of rank 0" in message
