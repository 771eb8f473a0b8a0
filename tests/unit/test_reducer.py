"""The reducer and its optimizer, over in-process ranks: when gradients leave, and what comes back."""

from __future__ import annotations

import copy
import gc
import re
import threading
import warnings
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch

from hvd_compress.compressors import Cast, TopK
from hvd_compress.decision import Request
from hvd_compress.engines.inprocess import InProcessEngine, InProcessWorld, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, PayloadError, UnsupportedError, UsageError
from hvd_compress.reducer import ReduceOptions
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, backward, flat_gradient, make_optimizer, make_parameters, on_engine

DENSE = REQUESTS["dense"]
PATIENCE_S = 20.0


def alone() -> InProcessEngine:
    return InProcessWorld(1).engine(0)


def test_a_bucket_leaves_while_the_backward_pass_still_runs() -> None:
    """The gradient of the first layer waits for the first collective: without overlap it would never come."""
    launched = threading.Event()
    engine = alone()
    allreduce = engine._allreduce

    def noticed(tensor: torch.Tensor, algorithm: str) -> None:
        launched.set()
        allreduce(tensor, algorithm)

    parameters, optimizer = on_engine(engine, DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    optimizer.zero_grad()
    engine._allreduce = noticed  # type: ignore[method-assign]
    last = list(optimizer.decisions)[-1][-1]
    waited: list[bool] = []
    parameters[last].register_hook(lambda gradient: waited.append(launched.wait(PATIENCE_S)))
    # A chain, so that the backward pass reaches that parameter after all others.
    x = parameters[last].sum()
    for name, parameter in parameters.items():
        if name != last:
            x = x * parameter.sum()
    x.backward()
    assert waited == [True]
    optimizer.synchronize()


def test_buckets_follow_the_order_in_which_gradients_became_ready_on_rank_0() -> None:
    """Even where another rank's backward pass takes its parameters the other way round."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, DENSE)
        for _ in range(2):
            names = list(parameters) if engine.rank == 0 else list(reversed(parameters))
            for name in names:
                parameters[name].sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(optimizer.decisions), flat_gradient_or_zero(parameters)

    plans = run_ranks(2, body)
    assert plans[0][0] == plans[1][0]
    assert [name for part in plans[0][0] for name in part] == list(make_parameters())


def flat_gradient_or_zero(parameters) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in parameters.values()])


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_live_in_their_bucket(set_to_none: bool) -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    addresses = []
    for step in range(3):
        backward(parameters, 0, step)
        optimizer.step()
        addresses.append([parameter.grad.data_ptr() for parameter in parameters.values()])
        optimizer.zero_grad(set_to_none=set_to_none)
        assert all((parameter.grad is None) == set_to_none for parameter in parameters.values())
    assert addresses[0] == addresses[1] == addresses[2]


def test_a_gradient_on_one_rank_only_reaches_all() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, DENSE)
        for _ in range(2):
            used = parameters["odd"] if engine.rank == 1 else parameters["first.bias"]
            (used * 2).sum().backward()
            optimizer.synchronize()
            found = {name: parameter.grad.clone() for name, parameter in parameters.items()}
            optimizer.zero_grad()
        return found

    for found in run_ranks(2, body):
        assert found["odd"].tolist() == [1.0]
        assert found["first.bias"].tolist() == [1.0] * 7
        assert not found["second.bias"].any()


def test_a_parameter_frozen_later_keeps_no_gradient_and_blocks_nobody() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    optimizer.zero_grad()
    parameters["odd"].requires_grad_(False)
    before = parameters["odd"].clone()
    backward(parameters, 0, 1)
    optimizer.step()
    assert parameters["odd"].grad is None
    assert torch.equal(parameters["odd"], before)


def test_gradients_of_several_backward_passes_are_summed_before_they_leave() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, DENSE, passes=2)
        for step in range(2):
            backward(parameters, engine.rank, 2 * step)
            backward(parameters, engine.rank, 2 * step + 1)
            optimizer.synchronize()
            result = flat_gradient(parameters).clone()
            optimizer.zero_grad()
        return result

    def expected() -> torch.Tensor:
        parameters = make_parameters()
        for rank in range(2):
            for step in (2, 3):
                backward(parameters, rank, step)
        return flat_gradient(parameters) / 2

    torch.testing.assert_close(run_ranks(2, body)[0], expected())


def test_one_backward_pass_too_many_says_what_to_do() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    with pytest.raises(UsageError, match="more than backward_passes_per_step = 1 times"):
        backward(parameters, 0, 1)
    assert optimizer.last_step is None


def test_gradients_may_not_be_cleared_under_way() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    with pytest.raises(UsageError, match="call synchronize"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()


def test_stepping_twice_is_told() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    with pytest.warns(UserWarning, match="no backward pass has run"):
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["topk-allgather", "topk-star", "topk-var", "efsign", "bf16", "dense"])
def test_every_dtype_is_reduced_in_place(name: str, dtype: torch.dtype) -> None:
    def body(engine: InProcessEngine):
        parameters = make_parameters(dtype=dtype)
        optimizer = make_optimizer(parameters, REQUESTS[name], lambda: engine, engine.rank, engine.world_size)
        for step in range(3):
            backward(parameters, engine.rank, step)
            optimizer.synchronize()
            result = flat_gradient(parameters).clone()
            assert all(parameter.grad.dtype == dtype for parameter in parameters.values())
            optimizer.zero_grad()
        return result

    first, second = run_ranks(2, body)
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    assert first.any()


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_sparse_gradients_are_averaged(sparse_as_dense: bool) -> None:
    rows = {0: [1, 3, 3], 1: [3, 5]}

    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        optimizer = make_optimizer(
            parameters, DENSE, lambda: engine, engine.rank, 2, options=ReduceOptions(sparse_as_dense=sparse_as_dense)
        )
        for _ in range(2):
            looked_up = torch.nn.functional.embedding(torch.tensor(rows[engine.rank]), parameters["table"], sparse=True)
            (looked_up * parameters["weight"]).sum().backward()
            optimizer.synchronize()
            result = parameters["table"].grad
            optimizer.zero_grad()
        return result

    expected = torch.zeros(8, 4)
    expected[[1, 3, 5]] = torch.tensor([0.5, 1.5, 0.5]).reshape(3, 1)
    for result in run_ranks(2, body):
        assert result.is_sparse
        assert torch.equal(result.to_dense(), expected)


def test_a_rank_without_sparse_gradient_contributes_no_rows() -> None:
    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, 2)
        loss = parameters["weight"].sum()
        if engine.rank == 1:
            loss = loss + torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum()
        loss.backward()
        optimizer.synchronize()
        return parameters["table"].grad.to_dense()

    for result in run_ranks(2, body):
        assert result[2].tolist() == [0.5] * 4
        assert result.sum() == 2.0


def test_a_gradient_that_turns_sparse_is_refused() -> None:
    parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4))}
    optimizer = make_optimizer(parameters, DENSE, alone, 0, 1)
    parameters["table"].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(UnsupportedError, match="pass sparse_as_dense=True"):
        torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum().backward()


def test_groups_travel_together() -> None:
    options = ReduceOptions(groups=(("first.weight", "second.bias"),))
    parameters, optimizer = on_engine(alone(), DENSE, options=options, settings=Settings(0, 60))
    backward(parameters, 0, 0)
    optimizer.step()
    parts = [set(names) for names in optimizer.decisions]
    assert {"first.weight", "second.bias"} in parts
    assert len(parts) == 4


def test_a_number_of_groups_makes_that_many_buckets() -> None:
    parameters, optimizer = on_engine(alone(), DENSE, options=ReduceOptions(groups=2), settings=Settings(0, 60))
    backward(parameters, 0, 0)
    optimizer.step()
    assert len(optimizer.decisions) == 2


@pytest.mark.parametrize("name", ["topk-star", "topk-allgather", "efsign"])
def test_training_resumes_where_a_checkpoint_was_taken(name: str) -> None:
    """Bit by bit: parameters, momentum, residuals, and whose turn it is."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUESTS[name], momentum=0.9)
        for step in range(3):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        saved = {n: p.detach().clone() for n, p in parameters.items()}, copy.deepcopy(optimizer.state_dict())
        for step in range(3, 6):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return saved, {n: p.detach() for n, p in parameters.items()}

    def resume(engine: InProcessEngine, saved):
        parameters, optimizer = on_engine(engine, REQUESTS[name], momentum=0.9)
        for n, p in parameters.items():
            p.data.copy_(saved[engine.rank][0][n])
        optimizer.load_state_dict(saved[engine.rank][1])
        for step in range(3, 6):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return {n: p.detach() for n, p in parameters.items()}

    uninterrupted = run_ranks(2, body)
    resumed = run_ranks(2, lambda engine: resume(engine, [saved for saved, _ in uninterrupted]))
    for (_, expected), found in zip(uninterrupted, resumed, strict=True):
        for n, value in expected.items():
            assert torch.equal(found[n], value), n


def test_residuals_of_another_rank_are_not_taken_over() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    state = optimizer.state_dict()
    state["hvd_compress"]["rank"] = 3
    with pytest.warns(UserWarning, match="residuals of rank 3 of 1 are not loaded on rank 0"):
        optimizer.load_state_dict(state)
    assert not any(residual.any() for residual in optimizer.state_dict()["hvd_compress"]["residuals"].values())


def test_a_checkpoint_without_compression_loads() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"], momentum=0.9)
    plain = torch.optim.SGD(list(parameters.values()), lr=0.5, momentum=0.9)
    backward(parameters, 0, 0)
    optimizer.step()
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_checkpoint_of_another_model_is_refused() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    state = optimizer.state_dict()
    state["hvd_compress"]["residuals"]["odd"] = torch.zeros(5)
    with pytest.raises(ConfigError, match="rank 0: the residual of 'odd' has 5 elements instead of 1"):
        optimizer.load_state_dict(state)


def test_residuals_follow_the_loss_scale() -> None:
    class Scaler:
        scale = 1024.0

        def get_scale(self) -> float:
            return self.scale

    scaler = Scaler()
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    optimizer.follow_loss_scale(scaler)
    backward(parameters, 0, 0)
    optimizer.step()
    before = optimizer.state_dict()["hvd_compress"]["residuals"]
    scaler.scale = 256.0
    optimizer.zero_grad()
    for parameter in parameters.values():
        (parameter * 0).sum().backward()
    optimizer.synchronize()
    after = optimizer.state_dict()["hvd_compress"]["residuals"]
    kept = {name: after[name] != 0 for name in after}
    assert any(mask.any() for mask in kept.values())
    for name, mask in kept.items():
        assert torch.equal(after[name][mask], before[name][mask] / 4)


def test_an_algorithm_that_the_engine_lacks_is_refused_in_the_first_step() -> None:
    engine = alone()
    engine.capabilities = replace(engine.capabilities, algorithms=("tree",))
    parameters, optimizer = on_engine(engine, Request(TopK(0.1), "star", "ring"))
    backward(parameters, 0, 0)
    with pytest.raises(UnsupportedError, match="cannot force algorithm 'ring'"):
        optimizer.step()


def test_different_settings_are_found_in_the_first_step() -> None:
    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, Request(TopK(0.1 if engine.rank else 0.2), "star"))
        backward(parameters, engine.rank, 0)
        with pytest.raises(ConfigError, match=r"settings differ between ranks: compression is .*ratio=0.2.* on rank 0"):
            optimizer.step()

    run_ranks(3, body)


def test_a_rank_that_sends_nonsense_is_named() -> None:
    """An index out of range from rank 1: it is refused with its place, and residuals stay as they were."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUESTS["topk-allgather"], settings=Settings(2**20, 60))
        allgather = engine._allgather

        def damaged(tensor, lengths):
            received = [buffer.clone() for buffer in allgather(tensor, lengths)]
            if lengths is not None:  # a payload, not the handshake
                received[1][80:84] = 255  # an index becomes -1
            return received

        engine._allgather = damaged  # type: ignore[method-assign]
        backward(parameters, engine.rank, 0)
        with pytest.raises((PayloadError, CommunicationError)) as raised:
            optimizer.step()
        residuals = optimizer.state_dict()["hvd_compress"]["residuals"].values()
        return raised.type, str(raised.value), any(residual.any() for residual in residuals)

    ended = run_ranks(2, body)  # the first to refuse may stop the other one in the middle of its collective
    assert PayloadError in [kind for kind, _, _ in ended]
    for kind, words, changed in ended:
        assert not changed
        if kind is PayloadError:
            assert re.search(r"^rank \d, step 0, bucket 0 \(.*\), decompressing: payload from rank 1: .*-1", words)


def test_an_optimizer_that_is_dropped_takes_its_threads_along() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    pipeline = optimizer._reducer._pipeline
    threads = [pipeline._kernels._thread, pipeline._collectives._thread]
    gone = weakref.ref(optimizer)
    del optimizer, pipeline
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    backward(parameters, 0, 1)  # and its hooks


def test_bytes_are_told_beside_dense() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    assert optimizer.last_step.sent_bytes == optimizer.last_step.dense_bytes == 0, "one rank sends nothing"

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, Request(Cast(), algorithm="ring"))
        for step in range(2):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return optimizer.last_step

    report = run_ranks(2, body)[0]
    assert report.step == 1
    assert report.sent_bytes == report.dense_bytes == 4 * (7 * 13 + 7 + 1 + 40 * 9 + 40)


def test_a_failure_in_the_backward_pass_surfaces_from_synchronize_with_its_cause() -> None:
    """The first bucket's collective fails while later buckets fill: backward() goes on, synchronize() says why."""
    engine = alone()
    parameters, optimizer = on_engine(engine, DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    optimizer.zero_grad()
    failed = threading.Event()

    def broken(tensor: torch.Tensor, algorithm: str) -> None:
        failed.set()
        raise OSError("cable cut")

    engine._allreduce = broken  # type: ignore[method-assign]
    first, *others = optimizer.decisions
    for name in first:
        parameters[name].sum().backward()
    assert failed.wait(PATIENCE_S)
    for name in [name for names in others for name in names]:
        parameters[name].sum().backward()
    with pytest.raises(CommunicationError, match=rf"rank 0, step 1, bucket 0 \({first[0]}.*allreduce .*cable cut"):
        optimizer.synchronize()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": Settings(10, 60)}, "HOROVOD_FUSION_THRESHOLD is 600 on rank 0 and 10 on rank 1"),
        (
            {"options": ReduceOptions(average=False)},
            "average=True.* on rank 0 and .*average=False.* on rank 1",
        ),
        ({"options": ReduceOptions(backward_passes_per_step=2)}, "backward_passes_per_step=2.* on rank 1"),
    ],
)
def test_every_setting_is_compared(change: dict[str, object], words: str) -> None:
    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, DENSE, **(change if engine.rank else {}))
        backward(parameters, engine.rank, 0)
        with pytest.raises(ConfigError, match=words):
            optimizer.step()

    run_ranks(2, body)


def test_a_setting_that_one_rank_cannot_have_is_a_difference_first() -> None:
    """Rank 1 alone asks for what the engine lacks: the handshake must tell all, instead of rank 1 leaving alone."""

    def body(engine: InProcessEngine) -> None:
        engine.capabilities = replace(engine.capabilities, algorithms=())
        parameters, optimizer = on_engine(engine, Request(TopK(0.1), "star", "ring" if engine.rank else "auto"))
        backward(parameters, engine.rank, 0)
        with pytest.raises(ConfigError, match=r"algorithm='ring'.* on rank 1"):
            optimizer.step()

    run_ranks(2, body)


def test_what_the_engine_cannot_do_with_a_dtype_is_found_in_the_handshake() -> None:
    engine = alone()
    engine.capabilities = replace(engine.capabilities, sum_dtypes=(torch.float32,))
    parameters = make_parameters(dtype=torch.float16)
    optimizer = make_optimizer(parameters, Request(Cast(), algorithm="ring"), lambda: engine, 0, 1)
    backward(parameters, 0, 0)
    with pytest.raises(ConfigError, match="handshake: algorithm='ring' names an allreduce"):
        optimizer.step()


def test_gathered_16_bit_gradients_are_rounded_once() -> None:
    """1 + 3 * 2^-11 in fp16: added one by one, each small part would be lost."""

    def body(engine: InProcessEngine):
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float16))
        optimizer = make_optimizer(
            {"p": parameter},
            REQUESTS["topk-all"],
            lambda: engine,
            engine.rank,
            4,
            options=ReduceOptions(average=False),
        )
        (parameter * (1.0 if engine.rank == 0 else 2.0**-11)).sum().backward()
        optimizer.synchronize()
        return parameter.grad.item()

    assert run_ranks(4, body)[0] == torch.tensor(1 + 3 * 2.0**-11, dtype=torch.float16).item() != 1.0


def test_predividing_keeps_a_large_sum_finite() -> None:
    def body(engine: InProcessEngine, factor: float):
        parameter = torch.nn.Parameter(torch.zeros(4))
        options = ReduceOptions(predivide_factor=factor)
        optimizer = make_optimizer({"p": parameter}, DENSE, lambda: engine, engine.rank, 4, options=options)
        (parameter * 2e38).sum().backward()
        optimizer.synchronize()
        return parameter.grad[0].item()

    assert run_ranks(4, lambda engine: body(engine, 4.0))[0] == pytest.approx(2e38)
    assert run_ranks(4, lambda engine: body(engine, 1.0))[0] == float("inf")


def test_loading_in_mid_training_does_not_move_the_step_counter() -> None:
    """STAR's turns must stay the same on all ranks when one of them loads a checkpoint."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUESTS["topk-star"])
        for step in range(4):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
            if step == 1 and engine.rank == 0:
                state = optimizer.state_dict()
                state["hvd_compress"]["step"] = 77
                optimizer.load_state_dict(state)
        return optimizer.last_step.step

    assert run_ranks(2, body) == [3, 3]


def test_the_graph_of_a_gradient_does_not_get_in_the_way() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    for _ in range(3):
        loss = sum(parameter.square().sum() for parameter in parameters.values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns of create_graph=True itself
            loss.backward(create_graph=True)
        optimizer.step()
        optimizer.zero_grad()


def test_parameters_that_would_not_be_exchanged_are_refused() -> None:
    parameters = make_parameters()
    parameters["odd"].requires_grad_(False)
    optimizer = make_optimizer(parameters, DENSE, alone, 0, 1)
    parameters["odd"].requires_grad_(True)
    backward(parameters, 0, 0)
    with pytest.raises(UnsupportedError, match=r"shape \(1,\) was frozen when the optimizer was wrapped"):
        optimizer.step()
    with pytest.raises(UnsupportedError, match="cannot be added"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


def test_a_dense_gradient_of_a_sparse_parameter_is_exchanged_by_its_rows() -> None:
    """Sparse on rank 0, dense on rank 1, as with a table that is also an output layer there."""

    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4))}
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, 2)
        if engine.rank == 0:
            torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum().backward()
        else:
            parameters["table"].sum().backward()
        optimizer.synchronize()
        return parameters["table"].grad.to_dense()

    for result in run_ranks(2, body):
        assert result[2].tolist() == [1.0] * 4
        assert result[0].tolist() == [0.5] * 4


@pytest.mark.parametrize("sparse_as_dense", [False, True])
def test_results_are_sparse_on_all_ranks_or_on_none(sparse_as_dense: bool) -> None:
    def body(engine: InProcessEngine):
        parameters = {"table": torch.nn.Parameter(torch.zeros(8, 4)), "weight": torch.nn.Parameter(torch.ones(4))}
        options = ReduceOptions(sparse_as_dense=sparse_as_dense)
        optimizer = make_optimizer(parameters, DENSE, lambda: engine, engine.rank, 2, options=options)
        loss = parameters["weight"].sum()
        if engine.rank == 1:
            loss = loss + torch.nn.functional.embedding(torch.tensor([2]), parameters["table"], sparse=True).sum()
        loss.backward()
        optimizer.synchronize()
        return parameters["table"].grad.is_sparse

    assert run_ranks(2, body) == [True, True]


@pytest.mark.parametrize("order", ["optimizer first", "scaler first"])
def test_residuals_are_saved_with_the_loss_scale_they_belong_to(order: str) -> None:
    class Scaler:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def get_scale(self) -> float:
            return self.scale

    scaler = Scaler(1024.0)
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    optimizer.follow_loss_scale(scaler)
    backward(parameters, 0, 0)
    optimizer.step()
    unscaled = {n: r / 1024 for n, r in optimizer.state_dict()["hvd_compress"]["residuals"].items()}
    scaler.scale = 512.0  # scaler.update() after a skipped step
    state = copy.deepcopy(optimizer.state_dict())

    other, resumed = Scaler(65536.0), on_engine(alone(), REQUESTS["topk-allgather"])[1]
    resumed.follow_loss_scale(other)
    if order == "scaler first":
        other.scale = 512.0
    resumed.load_state_dict(state)
    other.scale = 512.0
    loaded = resumed.state_dict()["hvd_compress"]["residuals"]
    assert any(residual.any() for residual in loaded.values())
    for name, residual in loaded.items():
        assert torch.equal(residual / 512, unscaled[name])


def unscale(parameters: list[torch.Tensor]) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(torch.optim.SGD(parameters))


USES = {
    "clip": lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 1e-3),
    "read": lambda parameters: parameters[0].grad.norm(),
    "change": lambda parameters: parameters[0].grad.clamp_(max=0),
    "unscale": unscale,
}


@pytest.mark.parametrize("use", USES)
def test_gradients_that_are_under_way_cannot_be_used(use: str) -> None:
    """From the first step on, and the result is what it would have been."""

    def body(engine: InProcessEngine, meddle: bool):
        parameters, optimizer = on_engine(engine, REQUESTS["topk-allgather"])
        for step in range(3):
            backward(parameters, engine.rank, step)
            if meddle and engine.rank == 0:
                with pytest.raises(UsageError, match=r"call optimizer.synchronize\(\) first"):
                    USES[use](list(parameters.values()))
            optimizer.synchronize()
            result = flat_gradient(parameters)
            with optimizer.skip_synchronize():
                optimizer.step()
            optimizer.zero_grad()
        return result

    meddled, plain = (run_ranks(2, partial(body, meddle=meddle)) for meddle in (True, False))
    assert torch.equal(meddled[0], meddled[1])
    assert torch.equal(meddled[0], plain[0])


def test_a_loss_scale_that_has_become_zero_leaves_residuals_alone() -> None:
    class Scaler:
        scale = 2.0

        def get_scale(self) -> float:
            return self.scale

    scaler = Scaler()
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    optimizer.follow_loss_scale(scaler)
    backward(parameters, 0, 0)
    optimizer.step()
    before = optimizer.state_dict()["hvd_compress"]["residuals"]
    for scale in (0.0, float("inf"), 4.0):
        scaler.scale = scale
        after = optimizer.state_dict()["hvd_compress"]["residuals"]
        factor = 2.0 if scale == 4.0 else 1.0
        assert all(torch.equal(after[name], factor * before[name]) for name in before)


def test_a_step_that_was_interrupted_by_halves_does_not_go_on() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    optimizer.zero_grad()
    bucket = optimizer._reducer._routes[0].bucket

    def interrupted() -> None:
        raise KeyboardInterrupt

    bucket.reset = interrupted  # type: ignore[method-assign]
    backward(parameters, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        optimizer.synchronize()
    with pytest.raises(CommunicationError, match="earlier exchange failed"):
        optimizer.synchronize()
