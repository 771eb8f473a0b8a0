"""What the first step refuses, and what a failure leaves behind."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

import pytest
import torch

from hvd_compress import __version__, of
from hvd_compress.compressors import Cast, TopK
from hvd_compress.engines.inprocess import InProcessEngine, run_ranks
from hvd_compress.errors import CommunicationError, ConfigError, PayloadError, UnsupportedError, UsageError
from hvd_compress.frontends.optimizer.reducer import ReduceOptions
from hvd_compress.request.request import Request
from hvd_compress.session import opening
from hvd_compress.session.handshake import Offer
from hvd_compress.settings import Settings
from tests.harness import REQUESTS, alone, backward, make_optimizer, make_parameters, on_engine, remembered

DENSE = REQUESTS["dense"]
PATIENCE_S = 120.0


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


def test_another_version_of_the_package_is_found_in_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank chooses by itself what to launch, by rules that change from version to version."""
    seen: list[Offer] = []
    compare = opening.agree
    monkeypatch.setattr(opening, "agree", lambda engine, offer: (seen.append(offer), compare(engine, offer))[1])

    def body(engine: InProcessEngine) -> None:
        parameters, optimizer = on_engine(engine, DENSE, settings=Settings(600, 60, adapt=True, calibration_s=0.0))
        backward(parameters, engine.rank, 0)
        optimizer.step()

    run_ranks(2, body)
    assert seen[0].settings["the version of hvd_compress"] == __version__


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": Settings(10, 60)}, "HOROVOD_FUSION_THRESHOLD is 600 on rank 0 and 10 on rank 1"),
        ({"settings": Settings(600, 60, calibration_s=1.0)}, "HVD_COMPRESS_CALIBRATION_S is 3.0 on .* 1.0 on rank 1"),
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


def test_parameters_that_would_not_be_exchanged_are_refused() -> None:
    parameters = make_parameters()
    parameters["odd"].requires_grad_(False)
    optimizer = make_optimizer(parameters, DENSE, alone, 0, 1)
    parameters["odd"].requires_grad_(True)
    with pytest.raises(UnsupportedError, match=r"'odd' is trained now, and was frozen .*wrapped: .*not be exchanged"):
        backward(parameters, 0, 0)
    with pytest.raises(UnsupportedError, match="'odd' is trained now"):  # on a rank that has no gradient
        optimizer.step()
    with pytest.raises(UnsupportedError, match="cannot be added"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


def test_parameters_that_come_by_way_of_the_torch_optimizer_are_refused() -> None:
    """The two share their groups."""
    parameters, optimizer = on_engine(alone(), DENSE)
    stranger = torch.nn.Parameter(torch.zeros(3, 2))
    torch.optim.Optimizer.add_param_group(optimizer, {"params": [stranger]})
    with pytest.raises(UnsupportedError, match=r"a parameter of shape \(3, 2\) is trained now, and was .*absent"):
        backward(parameters, 0, 0)


def test_the_loss_of_another_optimizer_that_reaches_these_parameters() -> None:
    """A GAN without requires_grad_(False): what to do is named wherever the program notices."""
    shapes = {"weight": (3,)}
    generator, discriminator = make_parameters(shapes), make_parameters(shapes)
    optimizers = [make_optimizer(each, DENSE, alone, 0, 1) for each in (generator, discriminator)]
    (generator["weight"] * discriminator["weight"]).sum().backward()
    optimizers[0].step()
    for notice in (optimizers[1].zero_grad, discriminator["weight"].sum().backward):
        with pytest.raises(UsageError, match=r"GAN, call requires_grad_\(False\) on them before its forward pass"):
            notice()


def test_a_rank_that_sends_nonsense_is_named() -> None:
    """An index out of range from rank 1: it is refused with its place, and residuals stay as they were."""

    def body(engine: InProcessEngine):
        parameters, optimizer = on_engine(engine, REQUESTS["topk-allgather"], settings=Settings(2**20, 60))
        allgather = engine._allgather

        def damaged(tensor, lengths, algorithm):
            received = [buffer.clone() for buffer in allgather(tensor, lengths, algorithm)]
            if lengths is not None:  # a payload, not the handshake
                received[1][80:84] = 255  # an index becomes -1
            return received

        engine._allgather = damaged  # type: ignore[method-assign]
        backward(parameters, engine.rank, 0)
        with pytest.raises((PayloadError, CommunicationError)) as raised:
            optimizer.step()
        residuals = remembered(optimizer.state_dict()["hvd_compress"])["residuals"].values()
        return raised.type, str(raised.value), any(residual.any() for residual in residuals)

    ended = run_ranks(2, body)  # the first to refuse may stop the other one in the middle of its collective
    assert PayloadError in [kind for kind, _, _ in ended]
    for kind, words, changed in ended:
        assert not changed
        if kind is PayloadError:
            assert re.search(r"^rank \d, step 0, bucket 0 \(.*\), decompressing: payload from rank 1: .*-1", words)


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
    first, *others = of(optimizer).decisions
    for name in first:
        parameters[name].sum().backward()
    assert failed.wait(PATIENCE_S)
    for name in [name for names in others for name in names]:
        parameters[name].sum().backward()
    with pytest.raises(CommunicationError, match=rf"rank 0, step 1, bucket 0 \({first[0]}.*allreduce .*cable cut"):
        optimizer.synchronize()


def test_a_step_that_was_interrupted_by_halves_does_not_go_on() -> None:
    parameters, optimizer = on_engine(alone(), REQUESTS["topk-allgather"])
    backward(parameters, 0, 0)
    optimizer.step()
    optimizer.zero_grad()
    bucket = optimizer._reducer._buckets[0]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    bucket.give_back = interrupted  # type: ignore[method-assign]
    backward(parameters, 0, 1)
    with pytest.raises(KeyboardInterrupt):
        optimizer.synchronize()
    for call in (optimizer.zero_grad, optimizer.synchronize):
        with pytest.raises(CommunicationError, match="earlier exchange failed"):
            call()
