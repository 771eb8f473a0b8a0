"""Some ranks only, and several optimizers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import hvd_compress.torch as hvd
from hvd_compress.request.request import Request
from tests.parallel.training import (
    STEPS,
    Make,
    assert_same_on_all_ranks,
    check_against_horovod,
    finish,
    flat,
    gradients,
    loss,
    maker,
    sgd,
    small_model,
    train,
)

COMPRESSIONS = {
    "topk": hvd.Compression.topk(0.05),
    "int8": hvd.Compression.int8().by(collective="alltoall-allgather"),
}


def test_process_set(some_ranks: hvd.ProcessSet, exact: Request) -> None:
    """Ranks in the set average among themselves; the others step by themselves."""

    def scenario(make: Make):
        model = small_model()
        optimizer = make(sgd(model), model, process_set=some_ranks)
        finish(train(optimizer, model))
        return model.parameters()

    expected, trained = flat(scenario(maker(hvd.Compression.none))), flat(scenario(maker(exact)))
    torch.testing.assert_close(trained, expected, rtol=1e-5, atol=1e-6)
    if some_ranks.included():
        assert_same_on_all_ranks(trained, some_ranks)
    hvd.barrier()  # a rank outside must not end, and Horovod with it, before the others have done


@pytest.mark.parametrize("compression", ["topk", "int8"])
def test_process_set_with_compression(some_ranks: hvd.ProcessSet, engine: str, compression: str) -> None:
    model = small_model()
    request = replace(COMPRESSIONS[compression], engine=engine)
    optimizer = maker(request)(sgd(model), model, process_set=some_ranks)
    for _ in train(optimizer, model):
        if some_ranks.included():
            assert_same_on_all_ranks(flat(gradients(model)), some_ranks)
    assert ("hvd_compress" in optimizer.state_dict()) == some_ranks.included()
    hvd.barrier()


def test_process_sets_that_follow_each_other(engine: str) -> None:
    """Horovod gives the second the number of the first, of which one member knows nothing."""
    for members in {2: [[0], [0]], 3: [[0, 1], [0, 2]], 4: [[0, 1], [0, 2]]}[hvd.size()]:
        process_set = hvd.add_process_set(members)
        model = small_model()
        optimizer = maker(hvd.Compression.topk(0.05).by(engine=engine))(sgd(model), model, process_set=process_set)
        finish(train(optimizer, model))
        if process_set.included():
            assert_same_on_all_ranks(flat(model.parameters()), process_set)
        hvd.barrier()
        hvd.remove_process_set(process_set)


def test_two_optimizers_in_one_program() -> None:
    """As in adversarial training: two models, stepped in turn."""

    def scenario(make: Make):
        models = [small_model(), small_model()]
        optimizers = [make(sgd(model), model) for model in models]
        for step in range(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                loss(model, step).backward()
                optimizer.step()
        return [*models[0].parameters(), *models[1].parameters()]

    check_against_horovod(scenario)
