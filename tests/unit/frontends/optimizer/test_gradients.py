"""When gradients leave for their bucket, where they live, and what may be done to them meanwhile."""

from __future__ import annotations

import gc
import threading
import time
import warnings
import weakref
from functools import partial

import pytest
import torch

from hvd_compress import of
from hvd_compress.compressors import Cast
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import UsageError
from hvd_compress.frontends.optimizer.optimizer import ReducingOptimizer
from hvd_compress.frontends.optimizer.reducer import ReduceOptions
from hvd_compress.request.request import Request
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, alone, backward, flat_gradient, make_optimizer, make_parameters, on_engine

DENSE = REQUESTS["dense"]
PATIENCE_S = 120.0


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
    last = list(of(optimizer).decisions)[-1][-1]
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
        return list(of(optimizer).decisions), flat_gradient_or_zero(parameters)

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
    assert of(optimizer).last_step is None


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
@pytest.mark.parametrize(
    "name",
    ["topk-allgather", "topk-star", "topk-var", "efsign", "momentum", "momentum-warmup", "demo", "bf16", "dense"],
)
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


def test_groups_travel_together() -> None:
    options = ReduceOptions(groups=(("first.weight", "second.bias"),))
    parameters, optimizer = on_engine(alone(), DENSE, options=options, settings=Settings(0, 60))
    backward(parameters, 0, 0)
    optimizer.step()
    parts = [set(names) for names in of(optimizer).decisions]
    assert {"first.weight", "second.bias"} in parts
    assert len(parts) == 4


def test_a_number_of_groups_makes_that_many_buckets() -> None:
    parameters, optimizer = on_engine(alone(), DENSE, options=ReduceOptions(groups=2), settings=Settings(0, 60))
    backward(parameters, 0, 0)
    optimizer.step()
    assert len(of(optimizer).decisions) == 2


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


def test_the_graph_of_a_gradient_does_not_get_in_the_way() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    for _ in range(3):
        loss = sum(parameter.square().sum() for parameter in parameters.values())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns of create_graph=True itself
            loss.backward(create_graph=True)
        optimizer.step()
        optimizer.zero_grad()


def test_bytes_are_told_beside_dense() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    assert of(optimizer).last_step.sent_bytes == of(optimizer).last_step.dense_bytes == 0, "one rank sends nothing"

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, Request(Cast(), algorithm="ring"))
        for step in range(2):
            backward(parameters, engine.rank, step)
            optimizer.step()
            optimizer.zero_grad()
        return of(optimizer).last_step

    report = run_ranks(2, body)[0]
    assert report.step == 1
    assert report.sent_bytes == report.dense_bytes == 4 * (7 * 13 + 7 + 1 + 40 * 9 + 40)


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


def test_an_optimizer_that_is_dropped_takes_its_threads_along() -> None:
    parameters, optimizer = on_engine(alone(), DENSE)
    backward(parameters, 0, 0)
    optimizer.step()
    pipeline = optimizer._reducer.session._pipeline
    threads = [pipeline._kernels._thread, pipeline._collectives._thread]
    gone = weakref.ref(optimizer)
    del optimizer, pipeline
    gc.collect()
    assert gone() is None
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    backward(parameters, 0, 1)  # and its hooks


def test_hooks_of_two_devices_threads_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd has a thread for each device: two at once would launch a bucket twice, or rescale residuals twice."""
    inside, most = 0, 0

    def slow(self: ReducingOptimizer, parameter: torch.Tensor) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.05)
        inside -= 1

    monkeypatch.setattr(ReducingOptimizer, "_gradient_ready", slow)
    parameters, optimizer = on_engine(alone(), DENSE)
    hook = optimizer._hooks._ready
    threads = [threading.Thread(target=hook, args=(parameter,)) for parameter in parameters.values()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (inside, most) == (0, 1)
    assert len(threads) > 1


@pytest.mark.parametrize(
    ("request_", "dtype", "told"),
    [
        (REQUESTS["topk-star"], torch.float64, 1),
        (REQUESTS["bf16"], torch.float64, 1),
        (REQUESTS["dense"], torch.float64, 0),
        (REQUESTS["topk-star"], torch.float32, 0),
    ],
    ids=["float64", "bf16", "dense", "float32"],
)
def test_float64_that_is_not_compressed_is_told_once(
    request_: Request, dtype: torch.dtype, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    """By one rank, and only where compression was asked for."""

    def body(engine: InProcessEngine) -> None:
        parameters = make_parameters({"a": (30,), "b": (20,)}, torch.float32)
        parameters["b"] = torch.nn.Parameter(parameters["b"].detach().to(dtype))
        optimizer = make_optimizer(parameters, request_, lambda: engine, engine.rank, engine.world_size)
        for step in range(3):
            backward(parameters, engine.rank, step)
            optimizer.step()

    run_ranks(2, body)
    assert len(caplog.records) == told
    for record in caplog.records:
        assert record.getMessage().startswith("hvd_compress: 1 of 2 parameters are float64 (b first) and travel dense")


@pytest.mark.parametrize("compressor", ["int4", "dense"])
def test_step_after_synchronize_does_not_add_again_what_is_remembered(compressor: str) -> None:
    """It would be added to gradients that were clipped, or unscaled. What remembers nothing warns, as Horovod does."""
    parameters, optimizer = on_engine(alone(), REQUESTS[compressor])
    for step in range(2):
        optimizer.zero_grad()
        backward(parameters, 0, step)
        optimizer.synchronize()
        if step == 0:
            with optimizer.skip_synchronize():
                optimizer.step()
    if compressor == "int4":
        with pytest.raises(UsageError, match="perhaps clipped or unscaled by now"):
            optimizer.step()
    else:
        with pytest.warns(UserWarning, match="exchanged again") as told:
            optimizer.step()
        assert {each.filename for each in told} == {__file__}, "the line of the program is named"


@pytest.mark.filterwarnings("ignore:gradients are exchanged again:UserWarning")
def test_a_rank_that_has_no_gradient_of_its_own_goes_on() -> None:
    """It keeps the memory of gradients, as zeros, and has no backward pass in this step."""
    parameters, optimizer = on_engine(alone(), REQUESTS["int4"])
    backward(parameters, 0, 0)
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
