"""On one host a large gradient that is sent as it is stays where autograd has written it, whatever other ranks do."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

import hvd_compress.torch as hvd
from hvd_compress.buckets import layout
from tests.parallel.training import (
    ENGINES,
    Make,
    assert_same_on_all_ranks,
    check_against_horovod,
    finish,
    flat,
    loss,
    maker,
    sgd,
    small_model,
    train,
)

pytestmark = pytest.mark.skipif("mpi" not in ENGINES, reason="needs mpirun")
DENSE = {"dense": hvd.Compression.dense(engine="mpi")}


@pytest.fixture(autouse=True)
def both_weights_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "ALONE_BYTES", 500)  # of 31, 403, 5 and 155 elements


@pytest.mark.parametrize("set_to_none", [True, False])
def test_results_lie_where_autograd_wrote_gradients(set_to_none: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_COMPRESS_CHECK_EVERY", "0")  # results are in one piece where replicas are compared
    model = small_model()
    written: dict[torch.Tensor, int] = {}

    def note(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        written[parameter] = parameter.grad.data_ptr()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    optimizer = maker(DENSE["dense"])(sgd(model), model)
    for step in range(3):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss(model, step).backward()
        optimizer.step()
        stays = [parameter.grad.data_ptr() == address for parameter, address in written.items()]
        is_large = [parameter.numel() > 100 for parameter in written]
        assert stays == (is_large if set_to_none or step == 0 else [True] * 4)
    assert_same_on_all_ranks(flat(model.parameters()))


def test_what_is_trained_is_what_horovod_trains() -> None:
    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = small_model()
        finish(train(make(sgd(model), model), model))
        return model.parameters()

    check_against_horovod(scenario, DENSE)


def test_a_rank_without_a_gradient_brings_zeros() -> None:
    """Its run lies in the bucket, while those of others do not."""

    def scenario(make: Make) -> Iterable[torch.Tensor]:
        model = small_model()
        optimizer = make(sgd(model), model)
        for step in range(3):
            optimizer.zero_grad()
            hidden = model[1](model[0](torch.ones(2, 13)))
            (hidden.sum() if step == 1 and hvd.rank() == 0 else loss(model, step)).backward()
            optimizer.step()
        return model.parameters()

    check_against_horovod(scenario, DENSE)


def test_a_residual_of_one_rank_is_sent_along() -> None:
    """A checkpoint of top-k, which rank 0 alone has: its bucket is one piece, and sent in the runs of the others."""
    model = small_model()
    optimizer = maker(hvd.Compression.topk(0.01, engine="mpi"))(sgd(model), model)
    finish(train(optimizer, model))
    state = optimizer.state_dict()
    resumed = small_model()
    again = maker(DENSE["dense"])(sgd(resumed), resumed)
    if hvd.rank() == 0:
        again.load_state_dict(state)
    else:
        again.load_state_dict({key: value for key, value in state.items() if key != "hvd_compress"})
    finish(train(again, resumed, range(1)))
    gradients = flat([parameter.grad for parameter in resumed.parameters()])
    assert_same_on_all_ranks(gradients)
    plain = small_model()
    finish(train(maker(hvd.Compression.none)(sgd(plain), plain), plain, range(1)))
    sent = gradients - flat([parameter.grad for parameter in plain.parameters()])
    assert sent.abs().max() > 1e-3
    finish(train(again, resumed))
    assert_same_on_all_ranks(flat(resumed.parameters()))
