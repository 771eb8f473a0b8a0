"""What DDP's front end refuses, and how a job ends in which ranks do not do the same."""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import hvd_compress.ddp as hc
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError
from tests.harness import remembered
from tests.unit.frontends.ddp.job import end_of_ranks, run_ranks
from tests.unit.frontends.ddp.training import (
    Needing,
    batch,
    check_ranks_equal,
    compressed,
    loss_of,
    make_model,
    optimizer_of,
)

CHECKOUT = Path(__file__).parents[4]
TOPK = hc.Compression.topk(0.1).by(collective="star")
LATE = {
    "unfrozen": lambda model: model.requires_grad_(True),
    "a new layer": lambda model: model.append(torch.nn.Linear(3, 3)),
    "another layer": lambda model: model.__setitem__(0, copy.deepcopy(model[0])),
    "assigned": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
}


def sharded(model: torch.nn.Module) -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


@pytest.fixture
def alone() -> Iterator[None]:
    """A job with one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()  # models must end before what they communicate with
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
class TestRefusal:
    @pytest.mark.parametrize(
        ("wrap", "words"),
        [
            (torch.nn.DataParallel, "DataParallel is one process"),
            (
                sharded,
                r"is sharded .*: shard the plain module with fully_shard\(\), .* of hvd_compress\.fsdp",
            ),
            (optimizer_of, "this is the optimizer SGD: with Horovod, pass compression="),
            (
                lambda model: None,
                r"this is a NoneType: model = DistributedDataParallel\(model\).*hvd_compress\.integrations",
            ),
        ],
    )
    def test_what_is_no_ddp_model(self, wrap: Callable[[torch.nn.Module], Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            hc.compress(wrap(make_model()), TOPK)

    @pytest.mark.parametrize("what", [hc.Compression, 0.01, None, "topk"])
    def test_what_is_no_compression(self, what: Any) -> None:
        with pytest.raises(ConfigError, match="is no compression: pass what a function of Compression returns"):
            hc.compress(DistributedDataParallel(make_model()), what)

    def test_a_function_that_was_not_called(self) -> None:
        with pytest.raises(ConfigError, match=r"Compression.auto is a function: call it, as in Compression.auto\(\)"):
            hc.compress(DistributedDataParallel(make_model()), hc.Compression.auto)

    def test_a_second_call(self) -> None:
        ddp = compressed(make_model(), TOPK)
        loss_of(ddp, 0, 0).backward()
        assert hc.compress(ddp, hc.Compression.topk(0.1).by(collective="star")) is ddp
        with pytest.raises(UsageError, match=r"is compressed already, by .*TopK.*wrap the module anew"):
            hc.compress(ddp, hc.Compression.int4())
        loss_of(ddp, 0, 1).backward()
        assert hc.of(ddp).last_step.step == 1

    def test_a_model_with_another_hook(self) -> None:
        ddp = DistributedDataParallel(make_model())
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        with pytest.raises(UsageError, match="has a communication hook already"):
            hc.compress(ddp, TOPK)

    def test_a_hook_that_comes_too_late(self) -> None:
        """DDP refuses it once a backward pass was; then nothing is known of the model."""
        ddp = DistributedDataParallel(make_model())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ddp, "register_comm_hook", lambda *_: (_ for _ in ()).throw(RuntimeError("too late")))
            with pytest.raises(RuntimeError, match="too late"):
                hc.compress(ddp, TOPK)
        with pytest.raises(UsageError, match="is not compressed"):
            hc.of(ddp)
        assert hc.compress(ddp, TOPK) is ddp
        loss_of(ddp, 0, 0).backward()
        assert hc.of(ddp).last_step.step == 0

    def test_sparse_gradients(self) -> None:
        model = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 2))
        with pytest.raises(UnsupportedError, match="'0' has sparse gradients"):
            hc.compress(DistributedDataParallel(model), TOPK)

    def test_what_needs_the_optimizer(self) -> None:
        with pytest.raises(UnsupportedError, match=r"needs hvd_compress.torch's optimizer, as a test says so"):
            hc.compress(DistributedDataParallel(make_model()), replace(TOPK, policy=Needing()))

    def test_questions_about_a_model_that_is_not_compressed(self) -> None:
        for model in (DistributedDataParallel(make_model()), make_model(), None):
            for ask in (hc.of, hc.state_dict):
                with pytest.raises(UsageError, match=f"this {type(model).__name__} is not compressed"):
                    ask(model)
            with pytest.raises(UsageError, match="is not compressed"):
                hc.load_state_dict(model, {})
            with pytest.raises(UsageError, match="is not compressed"):
                hc.of(model).follow_loss_scale(torch.amp.GradScaler("cpu"))

    def test_a_wrong_variable_of_the_environment(self, monkeypatch) -> None:
        ddp = DistributedDataParallel(make_model())
        monkeypatch.setenv("HVD_COMPRESS_TIMEOUT_S", "soon")
        with pytest.raises(ConfigError, match="HVD_COMPRESS_TIMEOUT_S = 'soon'"):
            hc.compress(ddp, TOPK)
        monkeypatch.delenv("HVD_COMPRESS_TIMEOUT_S")
        hc.compress(ddp, TOPK)  # nothing was registered

    def test_a_module_that_was_wrapped_again(self) -> None:
        ddp = compressed(make_model(), TOPK)
        loss_of(ddp, 0, 0).backward()
        again = DistributedDataParallel(ddp.module)
        with pytest.warns(UserWarning, match="this model exchanges no such gradients"):
            loss_of(again, 0, 0).backward()
        assert ddp.module(batch(0, 0)[0]).shape == (16, 3), "the module by itself can be used"
        assert hc.compress(again, TOPK) is again  # takes over, whoever still refers to the other one
        loss_of(again, 0, 1).backward()
        assert hc.of(again).last_step.step == 0
        with pytest.raises(UsageError, match="is compressed in another DistributedDataParallel than this one"):
            ddp(batch(0, 0)[0])

    def test_a_backward_pass_of_the_module_itself_is_told_once(self) -> None:
        ddp = compressed(make_model(), TOPK)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step in range(3):
                loss_of(ddp, 0, step).backward()
            with ddp.no_sync():
                loss_of(ddp, 0, 3).backward()
                loss_of(ddp, 0, 3).backward()
            loss_of(ddp, 0, 4).backward()
        with pytest.warns(UserWarning, match=r"where model\.module is called"):
            loss_of(ddp.module, 0, 0).backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss_of(ddp.module, 0, 1).backward()

    @pytest.mark.parametrize("change", LATE)
    def test_parameters_that_ddp_does_not_know_are_named(self, change: str) -> None:
        model = make_model()
        frozen = change == "unfrozen"
        next(model.parameters()).requires_grad_(not frozen)
        ddp = compressed(model, TOPK, find_unused_parameters=True)
        loss_of(ddp, 0, 0).backward()
        LATE[change](model)
        with pytest.raises(UsageError, match=r"trained that were frozen or absent .* wrap the module anew"):
            loss_of(ddp, 0, 1)
        with torch.no_grad():
            loss_of(ddp, 0, 1)

    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is :FutureWarning")
    def test_the_module_is_left_as_it_was(self) -> None:
        """Programs script it, and load what they have saved of it where this package is missing."""
        ddp = compressed(make_model(), TOPK)
        torch.jit.script(ddp.module)
        file = io.BytesIO()
        torch.save(ddp.module, file)
        assert b"hvd_compress" not in file.getvalue()

    def test_the_module_can_be_copied_and_saved(self) -> None:
        ddp = compressed(make_model(), TOPK)
        loss_of(ddp, 0, 0).backward()
        file = io.BytesIO()
        torch.save(ddp.module, file)
        file.seek(0)
        for module in (copy.deepcopy(ddp.module), torch.load(file, weights_only=False)):
            images, _ = batch(0, 0)
            assert torch.equal(module(images), ddp.module(images))
        for take in (copy.deepcopy, pickle.dumps, AveragedModel):
            with pytest.raises(UsageError, match=r"copy or save model.module, as in AveragedModel\(model.module\)"):
                take(ddp)
            other = compressed(module, TOPK)
            loss_of(other, 0, 0).backward()
            assert hc.of(other).last_step.step == 0


def test_a_ddp_that_the_compiler_traces() -> None:
    run_ranks(trace, ranks=1)


def trace(_: int) -> None:
    import torch._dynamo.config

    torch._dynamo.config.optimize_ddp = "python_reducer"
    with pytest.raises(UnsupportedError, match=r"optimize_ddp is .python_reducer.*so that torch.compile traces"):
        hc.compress(DistributedDataParallel(make_model()), TOPK)


def test_ranks_that_ask_for_different_compressions() -> None:
    run_ranks(differ)


def differ(rank: int) -> None:
    ddp = compressed(make_model(), "star" if rank == 1 else "efsign")
    with pytest.raises(ConfigError, match=f"rank {rank}.*settings differ.* on ranks 0, 2 and .* on rank 1"):
        loss_of(ddp, rank, 0).backward()
    with pytest.raises(CommunicationError, match=r"nothing is exchanged any more, .*settings differ"):
        loss_of(ddp, rank, 1)
    with torch.no_grad():
        loss_of(ddp.module, rank, 1)


def test_ranks_of_different_models() -> None:
    """DDP itself compares shapes alone."""
    run_ranks(differ_in_names)


def differ_in_names(rank: int) -> None:
    model = make_model()
    if rank == 2:
        model = torch.nn.Sequential(OrderedDict((f"other{name}", part) for name, part in model.named_children()))
    ddp = compressed(model, "star")
    told = f"rank {rank}, .*rank 2 optimizes other parameters than rank 0 .*'0.weight: .*'other0.weight: "
    with pytest.raises(ConfigError, match=told):
        loss_of(ddp, rank, 0).backward()


def test_a_rank_without_a_backward_pass_is_named() -> None:
    start_s = time.monotonic()
    run_ranks(leave_out, HVD_COMPRESS_TIMEOUT_S="3")
    assert time.monotonic() - start_s < 30


def leave_out(rank: int) -> None:
    ddp = compressed(make_model(), "star")
    optimizer = optimizer_of(ddp)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(ddp, rank, step).backward()
        optimizer.step()
    check_ranks_equal(ddp, 2)
    left = remembered(hc.state_dict(ddp))["residuals"]
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["seen 0", "seen 2"])
        return
    start_s = time.monotonic()
    named = f"rank {rank}, step 2, bucket 0 .*no answer within 3 s .*rank 1 has not arrived"
    with pytest.raises(CommunicationError, match=named):
        loss_of(ddp, rank, 2).backward()
    assert time.monotonic() - start_s < 10
    assert all(torch.equal(left[n], each) for n, each in remembered(hc.state_dict(ddp))["residuals"].items())
    with pytest.raises(CommunicationError, match=r"nothing is exchanged any more, .*rank 1 has not arrived"):
        loss_of(ddp, rank, 3)
    store.set(f"seen {rank}", "")


def test_a_rank_that_dies_is_an_error_of_the_others() -> None:
    """gloo tells them of a connection that is closed, without the number of the rank."""
    first, second, third = end_of_ranks(die, HVD_COMPRESS_TIMEOUT_S="5")
    assert second.died
    assert (first.error, third.error) == (None, None)


def die(rank: int) -> None:
    ddp = compressed(make_model(), "star")
    for step in range(2):
        loss_of(ddp, rank, step).backward()
    if rank == 1:
        os._exit(3)
    with pytest.raises(CommunicationError, match=rf"rank {rank}, step 2, bucket \d"):
        loss_of(ddp, rank, 2).backward()


def late(*arguments: str, timeout_s: str = "3") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, Path(__file__).with_name("late.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1", "HVD_COMPRESS_TIMEOUT_S": timeout_s},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.level2
def test_a_process_ends_though_an_error_came_while_buckets_were_exchanged() -> None:
    """In the middle of a collective, which Python's end would end, and the process with it by SIGABRT."""
    done = late("raises", timeout_s="300")
    assert done.returncode == 1, done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "the program ended, while gradients were exchanged, and not all ranks take part" in done.stderr
    assert "terminate" not in done.stderr


@pytest.mark.level2
def test_a_process_ends_though_a_rank_is_missing() -> None:
    """Past torch's own clean-up, which would wait: rank 1 stays until rank 0 has ended."""
    done = late()
    assert done.returncode == 1
    assert "CommunicationError: rank 0, step 2" in done.stderr
    assert "rank 1 has not arrived" in done.stderr
