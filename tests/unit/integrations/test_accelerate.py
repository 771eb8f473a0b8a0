"""A loop of Accelerate with compressed gradients: two ranks over gloo, and one process by itself."""

from __future__ import annotations

import gc
import math
import tempfile
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional

import hvd_compress.ddp as hc
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from tests.examples import printed_by
from tests.harness import remembered
from tests.unit.docs.blocks import run_pages
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import batch, check_ranks_equal, flat, make_model
from tests.unit.integrations.launched import COMPILER, launched, strictly

INT4, INT8 = hc.Compression.int4(), hc.Compression.int8()
IMPORTED = ("hvd_compress.integrations.accelerate", COMPILER)


class Blocks(torch.nn.Module):
    """Equal blocks, which Accelerate compiles each by itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(13, 13) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            images = torch.tanh(block(images))
        return images


class Loop:
    """What a user of Accelerate writes: a step is two batches, and gradients are clipped."""

    def __init__(
        self, request: Any = None, seed: int = 0, scaler: Any = None, model: Any = None, **options: Any
    ) -> None:
        from accelerate import Accelerator

        from hvd_compress.integrations.accelerate import compress

        self.forget()
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
        self.accelerator.scaler = scaler
        self.prepare(model or make_model(seed))
        self.accelerator.native_amp |= scaler is not None  # on CPUs Accelerate makes no scaler, and heeds none
        if request is not None:
            assert compress(self.accelerator, self.model, request) is self.model

    @staticmethod
    def forget() -> None:
        """Let the next accelerator have settings of its own: those of a process share them, as mixed precision."""
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(True)
        GradientState._reset_state()

    def prepare(self, model: torch.nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def run(self, rank: int, steps: range, largest: float = 0.1) -> torch.Tensor:
        """Train with gradients of a norm of `largest`, and return the parameters."""
        for number in range(2 * steps.start, 2 * steps.stop):
            images, labels = batch(rank, number)
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(functional.cross_entropy(self.model(images), labels))
                if self.accelerator.sync_gradients:
                    assert self.accelerator.clip_grad_norm_(self.model.parameters(), largest) > largest
                self.optimizer.step()
                self.optimizer.zero_grad()
        if dist.is_initialized():
            check_ranks_equal(self.model, steps)
        return flat(self.model)

    def loss(self) -> float:
        images, labels = batch(99, 99)
        with torch.no_grad():
            return functional.cross_entropy(self.model(images), labels).item()


def test_two_ranks_and_then_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(train_two_ranks, Path(folder), ranks=2, imports=IMPORTED, HVD_COMPRESS_CHECK_EVERY="3")
        run_ranks(go_on_alone, Path(folder), ranks=1)


def train_two_ranks(rank: int, folder: Path) -> None:
    with launched(rank, 2):
        clipped_and_accumulated_as_dense(rank)
        resumed_as_never_interrupted(rank, folder)
        mixed_precision_and_compiled(rank)
        learning_rates_are_followed(rank)
        files_of_models_and_hosts(rank, folder)
        one_rank_saves(rank, folder / "alone of two")
        takes_local_steps(rank)
        refused()
        run_pages_of_docs()
        run_example(rank, folder / "example")


def clipped_and_accumulated_as_dense(rank: int) -> None:
    dense, int8, int4 = Loop(), Loop(INT8), Loop(INT4)
    begun = flat(make_model())
    exact, near, far = (loop.run(rank, range(8)) - begun for loop in (dense, int8, int4))
    assert (near - exact).norm() < 0.004 * exact.norm()
    assert 0.004 * exact.norm() < (far - exact).norm() < 0.1 * exact.norm()
    assert abs(int8.loss() - dense.loss()) < 0.001
    assert abs(int4.loss() - dense.loss()) < 0.01


def takes_local_steps(rank: int) -> None:
    """One rank skips a step, as a loss scale that is too large has it do, and waits for the other at the end."""
    loop = Loop()
    local = hc.local_steps(loop.model, loop.optimizer, every=3, start_after=2)
    for number in range(14):
        images, labels = batch(rank, number)
        with loop.accelerator.accumulate(loop.model):
            loop.accelerator.backward(functional.cross_entropy(loop.model(images), labels))
            if not (rank == 1 and number in (8, 9)):
                loop.optimizer.step()
            loop.optimizer.zero_grad()
    found: list[Any] = [None, None]
    dist.all_gather_object(found, flat(loop.model))
    assert not torch.equal(*found)
    local.finish()
    check_ranks_equal(loop.model, "finish()")
    assert loop.loss() < math.log(3)


def resumed_as_never_interrupted(rank: int, folder: Path) -> None:
    whole = Loop(INT4)
    whole.run(rank, range(3))
    residuals = remembered(hc.state_dict(whole.model))["residuals"]
    assert all(each.any() for each in residuals.values())
    whole.accelerator.save_state(str(folder))
    expected = whole.run(rank, range(3, 6))
    again = Loop(INT4, seed=1)
    again.accelerator.load_state(str(folder))
    kept = remembered(hc.state_dict(again.model))["residuals"]
    assert all(torch.equal(kept[name], each) for name, each in residuals.items())
    assert torch.equal(again.run(rank, range(3, 6)), expected)
    dist.barrier()
    assert sorted(each.name for each in folder.glob("hvd*")) == ["hvd_compress_0_0.pt", "hvd_compress_0_1.pt"]
    assert not [*folder.glob("custom*")]


def mixed_precision_and_compiled(rank: int) -> None:
    from accelerate.utils import TorchDynamoPlugin

    expected = Loop(INT4).run(rank, range(6))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    scaled = Loop(INT4, scaler=scaler, mixed_precision="fp16")
    assert torch.equal(scaled.run(rank, range(6)), expected), "a residual was not in the units of the loss scale"
    assert scaler.get_scale() == hc.state_dict(scaled.model)["loss_scale"] == 2.0**13
    half = Loop(INT4, mixed_precision="bf16")
    begun = flat(make_model())
    assert 0 < (half.run(rank, range(6)) - expected).norm() < 0.1 * (expected - begun).norm()
    compiled = Loop(INT4, dynamo_backend="eager")
    assert isinstance(compiled.model, torch._dynamo.OptimizedModule)
    assert torch.equal(compiled.run(rank, range(6)), expected)
    expected = Loop(INT4, model=Blocks()).run(rank, range(6))
    regions = Loop(INT4, model=Blocks(), dynamo_plugin=TorchDynamoPlugin("eager", use_regional_compilation=True))
    with warnings.catch_warnings():  # dynamo looks at the gradient of what a block is given, which is no leaf
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        assert torch.equal(regions.run(rank, range(6)), expected)


def learning_rates_are_followed(rank: int) -> None:
    levels = (hc.Compression.topk(0.5).by(collective="allgather"), hc.Compression.topk(0.05).by(collective="allgather"))
    loop = Loop(hc.Compression.accordion(*levels, eta=math.inf, every=1))
    hc.of(loop.model).follow_learning_rate(loop.optimizer)
    for epoch in range(5):
        loop.run(rank, range(3 * epoch, 3 * epoch + 3), largest=0.01)
        loop.optimizer.param_groups[0]["lr"] /= 10 if epoch == 2 else 1
        hc.of(loop.model).end_epoch()
    assert any("the learning rate has decayed" in each.reason for each in hc.of(loop.model).controller.history.events)


def files_of_models_and_hosts(rank: int, folder: Path) -> None:
    from hvd_compress.integrations.accelerate import compress

    loop, own = Loop(INT4), folder / f"host {rank}"
    loop.run(rank, range(1))
    compress(loop.accelerator, loop.model, INT4)
    loop.accelerator.save_state(str(own))
    assert [each.name for each in own.glob("hvd*")] == [f"hvd_compress_0_{rank}.pt"]
    loop.accelerator.free_memory(loop.model, loop.optimizer)
    del loop.model, loop.optimizer
    gc.collect()
    with pytest.raises(UsageError, match=r"is gone.*: call compress\(accelerator, model, ...\) for the new one"):
        loop.accelerator.save_state(str(own))
    loop.prepare(make_model())
    compress(loop.accelerator, loop.model, INT4)
    second = loop.accelerator.prepare(make_model(1))
    compress(loop.accelerator, second, INT8)
    loss = functional.cross_entropy(second(batch(rank, 0)[0]), batch(rank, 0)[1])
    loop.accelerator.backward(loss)
    loop.accelerator.save_state(str(own))
    assert sorted(each.name for each in own.glob("hvd*")) == [f"hvd_compress_{each}_{rank}.pt" for each in (0, 1)]
    kept = torch.load(own / f"hvd_compress_1_{rank}.pt", weights_only=True)
    assert all(map(torch.equal, *(remembered(each)["residuals"].values() for each in (kept, hc.state_dict(second)))))
    dist.barrier()


def one_rank_saves(rank: int, folder: Path) -> None:
    """While the other gathers something of its own: nothing waits, and who goes on learns what is missing."""
    loop = Loop(INT4)
    loop.run(rank, range(3))
    if loop.accelerator.is_main_process:
        loop.accelerator.save_state(str(folder))
    assert loop.accelerator.gather(torch.tensor([rank])).tolist() == [0, 1]
    owed = remembered(hc.state_dict(loop.model))["residuals"]
    again = Loop(INT4, seed=1)
    if rank == 0:
        again.accelerator.load_state(str(folder))
        assert all(map(torch.equal, remembered(hc.state_dict(again.model))["residuals"].values(), owed.values()))
    else:
        torch.save({}, folder / "random_states_1.pkl")  # Accelerate's own, without which it logs
        with pytest.warns(UserWarning, match="residuals of rank 0 of 2 are not loaded on rank 1 of 2, which starts"):
            again.accelerator.load_state(str(folder))
        assert not any(each.any() for each in remembered(hc.state_dict(again.model))["residuals"].values())
    again.run(rank, range(3, 5))
    assert hc.of(again.model).last_step.step == 4
    dist.barrier()
    if rank == 0:
        (folder / "hvd_compress_0_0.pt").write_bytes(b"cut")
        with pytest.raises(ConfigError, match=r"hvd_compress_0_0.pt cannot be read: .*; resume from another"):
            again.accelerator.load_state(str(folder))
        torch.save([], folder / "hvd_compress_0_0.pt")
        with pytest.raises(ConfigError, match=r"hvd_compress_0_0.pt is none that compression has written"):
            again.accelerator.load_state(str(folder))
        (folder / "hvd_compress_0_0.pt").unlink()
        with pytest.warns(UserWarning, match=r"there is no hvd_compress_0_\*.pt in .*: residuals begin with zeros"):
            again.accelerator.load_state(str(folder))
    dist.barrier()


def refused() -> None:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs, DistributedType

    from hvd_compress.integrations.accelerate import compress

    if not torch.cuda.is_available():
        Loop.forget()
        with pytest.raises(
            ConfigError, match=r"sees one process where several were launched.* Accelerator\(cpu=True\)"
        ):
            compress(Accelerator(), make_model(), INT4)
    loop = Loop()
    with pytest.raises(ConfigError, match=r"has not wrapped this Sequential .* call compress\(\) with what .*prepare"):
        compress(loop.accelerator, make_model(), INT4)
    with pytest.raises(ConfigError, match=r"takes the accelerator first, .* DistributedDataParallel: compress\(acc"):
        compress(loop.model, loop.accelerator, INT4)
    with pytest.raises(ConfigError, match="has not wrapped this AcceleratedOptimizer"):
        compress(loop.accelerator, loop.optimizer, INT4)
    compress(loop.accelerator, loop.model, INT4)
    with pytest.raises(UsageError, match=r"compressed already, .*: wrap the module anew"):
        compress(loop.accelerator, loop.model, hc.Compression.auto())
    for hook in ("fp16", INT4):  # Accelerate takes no notice of the second
        loop = Loop(kwargs_handlers=[DistributedDataParallelKwargs(comm_hook=hook)])
        with pytest.raises(UsageError, match="DDP takes one: leave comm_hook out"):
            compress(loop.accelerator, loop.model, INT4)
    for kind, remedy in (
        ("FSDP", r"call compress\(\) of hvd_compress.fsdp"),
        ("DEEPSPEED", "train without a DeepSpeedPlugin"),
        ("MEGATRON_LM", "train without a MegatronLMPlugin"),
        ("XLA", "on TPUs"),
    ):
        loop = Loop()
        loop.accelerator.state.distributed_type = DistributedType[kind]  # the first and the last want GPUs and TPUs
        with pytest.raises(UnsupportedError, match=remedy):
            compress(loop.accelerator, loop.model, INT4)


def run_example(rank: int, folder: Path) -> None:
    Loop.forget()
    given = "--width", "16", "--compression", "int4", "--folder", str(folder)
    printed = printed_by("accelerate_lm.py", "--steps", "1", *given)
    assert ("step 1: loss 5." in printed) == (rank == 0)
    Loop.forget()
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}.store", 2), rank=rank, world_size=2)
    printed = printed_by("accelerate_lm.py", "--steps", "11", *given)
    assert ("step 11: loss " in printed and "step 1:" not in printed) == (rank == 0)


def run_pages_of_docs() -> None:
    def begin(names: dict[str, Any]) -> None:
        model = make_model()
        data = [(*batch(0, number),) for number in range(4)]
        loader = torch.utils.data.DataLoader(data, batch_size=None)
        names.update(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), loader=loader)

    Loop.forget()
    with patch.dict("os.environ", ACCELERATE_USE_CPU="true"):  # as `accelerate launch --cpu` sets it
        run_pages("accelerate", begin)


def go_on_alone(rank: int, folder: Path) -> None:
    """The same program on a laptop: what two ranks owed is their mean, and goes into its checkpoint."""
    dist.destroy_process_group()
    with strictly():
        with pytest.warns(UserWarning, match="there is one process, so no gradients are exchanged"):
            loop = Loop(INT4)
        loop.accelerator.load_state(str(folder))
        saved = [torch.load(folder / f"hvd_compress_0_{each}.pt", weights_only=True)["ranks"] for each in range(2)]
        ranks = {**saved[0], **saved[1]}
        for name, owed in remembered(hc.state_dict(loop.model))["residuals"].items():
            mean = sum(ranks[f"rank {each} of 2"]["residuals"][name].double() for each in range(2)) / 2
            assert torch.allclose(owed.double(), mean, atol=1e-7, rtol=1e-6)
        loop.run(rank, range(2))
        loop.accelerator.save_state(str(folder / "alone"))
        loop.accelerator.load_state(str(folder / "alone"))
