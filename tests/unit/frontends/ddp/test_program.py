"""What programs do to a compressed DDP model beside training steps: as plain DDP has it, or an error on every rank."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

import hvd_compress
import hvd_compress.ddp as hc
from hvd_compress.errors import ConfigError, ReplicaError, UnsupportedError, UsageError
from tests.harness import gradient, remembered
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import (
    BROUGHT,
    REQUESTS,
    Given,
    check_ranks_equal,
    compressed,
    flat,
    loss_of,
    make_model,
    optimizer_of,
    train,
)

takes_any_dtype = pytest.mark.skipif(
    "init_sync" not in signature(DistributedDataParallel.__init__).parameters,
    reason="this torch's DDP broadcasts parameters first, over gloo not those of every dtype",
)


class Convolution(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kernel = torch.nn.Conv2d(3, 4, 3)
        self.head = torch.nn.Linear(4, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.kernel(images).mean((2, 3)))


def images(rank: int, step: int) -> torch.Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(100 * rank + step))


def step_of(ddp: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    optimizer.zero_grad()
    ddp(images(rank, step)).square().mean().backward()
    optimizer.step()


CONVERSIONS: dict[str, Callable[[torch.nn.Module], object]] = {
    "double-float": lambda model: model.double().float(),
    "half-float": lambda model: model.half().float(),
    "bfloat16": lambda model: model.bfloat16().float().bfloat16(),
    "one layer": lambda model: model.head.double().float(),
}
HARMLESS: dict[str, Callable[[torch.nn.Module], object]] = {
    "gradients": lambda model: [setattr(p.grad, "data", p.grad.clone()) for p in model.parameters()],
    "parameters": lambda model: [setattr(p, "data", p.data.clone()) for p in model.parameters()],
}


def test_a_conversion_that_ddp_does_not_see_is_an_error_on_every_rank() -> None:
    """DDP has hooks on nodes of autograd that a conversion replaces: each rank would train by itself."""
    run_ranks(convert, ranks=2)


def convert(rank: int) -> None:
    for name, conversion in CONVERSIONS.items():
        ddp = compressed(Convolution(), "int8")
        optimizer = optimizer_of(ddp)
        step_of(ddp, optimizer, rank, 0)
        conversion(ddp.module)
        before = flat(ddp)
        with pytest.raises(UsageError, match=r"parameters were converted after DistributedDataParallel had wrapped"):
            step_of(ddp, optimizer, rank, 1)
        assert torch.equal(flat(ddp), before), name
        with torch.no_grad():
            ddp.module.float()(images(rank, 1))  # the module itself runs
        again = compressed(ddp.module, "int8")
        optimizer = optimizer_of(again)
        for step in range(1, 4):
            step_of(again, optimizer, rank, step)
        check_ranks_equal(again, name)
    for name, change in HARMLESS.items():
        ddp = compressed(Convolution(), "none")
        optimizer, plain = optimizer_of(ddp), DistributedDataParallel(Convolution())
        reference = optimizer_of(plain)
        for step in range(5):
            step_of(ddp, optimizer, rank, step)
            step_of(plain, reference, rank, step)
            if step == 1:
                change(ddp.module)
        check_ranks_equal(ddp, name)
        torch.testing.assert_close(flat(ddp), flat(plain))


class Layered(torch.nn.Module):
    """Uses a layer or not, as it is told."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(13, 20), torch.nn.Linear(20, 20)
        self.last = torch.nn.Linear(20, 3)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(self.first(batch).tanh()).tanh())


def test_a_layer_that_is_frozen_while_training_stays_as_it_is() -> None:
    """Whatever earlier steps have not sent of it: with plain DDP it has no gradient any more."""
    run_ranks(freeze, ranks=2)


def freeze(rank: int) -> None:
    for name in REQUESTS:
        for set_to_none in (True, False):
            ddp = compressed(Layered(), name, find_unused_parameters=True)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for step in range(7):
                if step == 3:
                    ddp.module.second.requires_grad_(False)
                    before = flat(ddp.module.second)
                optimizer.zero_grad(set_to_none=set_to_none)
                batch = torch.randn(8, 13, generator=torch.Generator().manual_seed(10 * rank + step))
                ddp(batch).square().mean().backward()
                optimizer.step()
                check_ranks_equal(ddp, f"{step} of {name}")
            assert torch.equal(flat(ddp.module.second), before), name


class Complex(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.odd = torch.nn.Parameter(torch.randn(3, dtype=dtype, generator=generator))
        self.matrix = torch.nn.Parameter(torch.randn(5, 4, dtype=dtype, generator=generator).t())
        self.real = torch.nn.Parameter(torch.randn(7, generator=generator))
        self.sometimes = torch.nn.Parameter(torch.randn(2, dtype=dtype, generator=generator))

    def forward(self, rank: int, step: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(100 * rank + step)
        used = (self.odd, self.matrix, self.real, *([self.sometimes] if step in (1, 2) else []))
        terms = [(p * torch.randn(p.shape, dtype=p.dtype, generator=draw)).real.sum().float() for p in used]
        return torch.stack(terms).sum()


@takes_any_dtype
def test_complex_parameters_are_trained_as_by_plain_ddp() -> None:
    run_ranks(train_complex, ranks=2)


def train_complex(rank: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        for name in ("none", "allgather", "int8", "powersgd", *BROUGHT):
            ddp = compressed(Complex(dtype), name, find_unused_parameters=True)
            plain = DistributedDataParallel(Complex(dtype), find_unused_parameters=True)
            optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ddp, plain)]
            for step in range(6):
                for model, optimizer in zip((ddp, plain), optimizers, strict=True):
                    optimizer.zero_grad()
                    model(rank, step).backward()
                    optimizer.step()
            check = torch.view_as_real(
                torch.cat([p.detach().reshape(-1).to(torch.complex128) for p in ddp.parameters()])
            )
            gathered = [torch.empty_like(check) for _ in range(2)]
            dist.all_gather(gathered, check)
            assert torch.equal(*gathered), f"{name}, {dtype}"
            for (key, mine), theirs in zip(ddp.named_parameters(), plain.parameters(), strict=True):
                if name == "none" or (dtype == torch.complex128 and mine.is_complex()):
                    torch.testing.assert_close(mine, theirs, msg=f"{name}, {key}: {{}}".format)
                elif name == "int8":
                    torch.testing.assert_close(mine, theirs, rtol=0, atol=0.1, msg=f"{name}, {key}: {{}}".format)


@takes_any_dtype
def test_dtypes_that_nothing_exchanges_are_named() -> None:
    run_ranks(refuse_dtypes, ranks=1)


def refuse_dtypes(_: int) -> None:
    model = torch.nn.Linear(3, 3)
    model.extra = torch.nn.Parameter(torch.zeros(4).to(torch.float8_e4m3fn))
    ddp = DistributedDataParallel(model, init_sync=False)
    with pytest.raises(UnsupportedError, match=r"'extra' has gradients of torch\.float8_e4m3fn"):
        hc.compress(ddp, hc.Compression.int8())


@pytest.mark.parametrize("name", ["none", "fp16", "half", "dense", "bf16"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_average_of_large_16_bit_gradients_is_finite(name: str, dtype: torch.dtype) -> None:
    run_ranks(average, name, dtype)


def average(_: int, name: str, dtype: torch.dtype) -> None:
    """torch's own hooks divide before they sum, too."""
    model = torch.nn.Linear(4, 4, bias=False).to(dtype)
    ddp = compressed(model, name)
    most = 6e4 if torch.float16 in (dtype, REQUESTS[name].compressor.dtype) else 3e38
    (ddp(torch.eye(4).to(dtype)) * (most if dtype != torch.float32 or most == 6e4 else 1.0)).sum().backward()
    assert ddp.module.weight.grad.isfinite().all()
    if dtype != torch.float32 or most == 6e4:
        torch.testing.assert_close(ddp.module.weight.grad.float(), torch.full((4, 4), most), rtol=2e-2, atol=0)


def test_replicas_that_part_are_an_error_on_every_rank() -> None:
    messages = run_ranks(part, HVD_COMPRESS_CHECK_EVERY="2")
    assert len(set(messages)) == 1
    assert "parameter '0.weight' (bucket " in messages[0]
    assert "on rank 1 is not that of rank 0, and so are 0 more of 8" in messages[0]


def train_alone(rank: int) -> None:
    """Of noop() each rank trains as without the others, and they are not compared."""
    ddp, plain = compressed(make_model(), hc.Compression.noop()), make_model()
    train(ddp, optimizer_of(ddp), rank, range(4))
    train(plain, optimizer_of(plain), rank, range(4))
    assert torch.equal(flat(ddp), flat(plain))


def part(rank: int) -> str:
    train_alone(rank)
    ddp = compressed(make_model(), "int8")
    optimizer = optimizer_of(ddp)
    for step in range(6):
        optimizer.zero_grad()
        try:
            loss_of(ddp, rank, step).backward()
        except ReplicaError as error:
            assert step == 5, "changed after exchange 3, found in 4"
            return str(error)
        optimizer.step()
        if step == 3 and rank == 1:
            with torch.no_grad():
                ddp.module[0].weight[0, 0] += 1e-3
    raise AssertionError("nothing was told")


def test_ranks_that_join_early_are_no_replicas() -> None:
    run_ranks(join, HVD_COMPRESS_CHECK_EVERY="1")


def join(rank: int) -> None:
    ddp = compressed(make_model(), "int8")
    optimizer = optimizer_of(ddp)
    with ddp.join():
        for step in range(4 + 3 * rank):
            optimizer.zero_grad()
            loss_of(ddp, rank, step).backward()
            optimizer.step()
    check_ranks_equal(ddp, "joined")
    assert hc.of(ddp).last_step.step == 9


def test_a_checkpoint_of_all_ranks_in_one_folder_mixes_no_ranks_up() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(save_together, Path(folder))


def save_together(rank: int, folder: Path) -> None:
    """torch.distributed.checkpoint stores what has one name on all ranks once."""
    for name in ("allgather", "int8", "powersgd", "momentum"):
        going = compressed(make_model(), name)
        optimizer = optimizer_of(going)
        train(going, optimizer, rank, range(4))
        before = hc.state_dict(going)
        dcp.save({"model": going.module.state_dict(), "compression": before}, checkpoint_id=folder / name)
        again = compressed(make_model(3), name)
        state = {"model": again.module.state_dict(), "compression": hc.state_dict(again)}
        dcp.load(state, checkpoint_id=folder / name)
        again.module.load_state_dict(state["model"])
        hc.load_state_dict(again, state["compression"])
        after = hc.state_dict(again)
        same(remembered(after)["residuals"], remembered(before)["residuals"])
        for kind, kept in remembered(before)["states"].items():
            same(remembered(after)["states"][kind], kept)
        train(again, optimizer_of(again), rank, range(4, 6))
        assert hc.of(again).last_step.step == 5
        check_ranks_equal(again, name)


def same(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


@pytest.mark.level2
def test_a_model_may_be_compiled_before_and_after() -> None:
    run_ranks(compile_both, ranks=2)


def compile_both(rank: int) -> None:
    trained = []
    for first in (True, False):
        ddp = DistributedDataParallel(make_model())
        if first:
            model = torch.compile(ddp, backend="eager")
            assert hc.compress(model, hc.Compression.int8()) is model
        else:
            model = torch.compile(hc.compress(ddp, hc.Compression.int8()), backend="eager")
        optimizer = optimizer_of(ddp)
        train(model, optimizer, rank, range(4))
        check_ranks_equal(ddp, first)
        assert hc.of(model).last_step.step == 3
        hc.load_state_dict(model, hc.state_dict(model))
        trained.append(flat(ddp))
    assert torch.equal(*trained)


@pytest.mark.level2
def test_a_script_for_a_cluster_runs_in_one_process() -> None:
    """Without torchrun and DDP: a warning, and every function takes the model."""
    module = make_model()
    with pytest.warns(UserWarning, match="there is one process, so no gradients are exchanged") as told:
        model = hc.compress(module, hc.Compression.int8())
    assert (model, told[0].filename) == (module, __file__)
    optimizer, scaler = optimizer_of(model), torch.amp.GradScaler("cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hc.compress(torch.compile(module), hc.Compression.int8())._orig_mod is module
        hc.of(model).follow_loss_scale(scaler)
        hc.of(model).follow_learning_rate(optimizer)
        train(model, optimizer, 0, range(2))
        hc.of(model).end_epoch()
        assert (hc.of(model).last_step, hc.of(model).decisions, hc.of(model).controller) == (None, {}, None)
        assert hvd_compress.of(model).metrics() == {}
        assert hc.of(model).gather_figures([1, 2]) == [[1.0, 2.0]]
        state = hc.state_dict(model)
        assert hc.of(model).gathered_state_dict().keys() == state.keys()
        hc.of(model).load_gathered_state_dict(state)
    with pytest.raises(UsageError, match="on a rank that exchanges nothing"):
        hc.of(model).save_plan("plan.json")
    with pytest.raises(UsageError, match="is compressed already"):
        hc.compress(module, hc.Compression.int4())


@pytest.mark.level2
def test_one_process_of_several_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
        for model in (make_model(), torch.compile(make_model())):
            with pytest.raises(ConfigError, match=r"this is a Sequential: launch the program with torchrun"):
                hc.compress(model, hc.Compression.int8())
        monkeypatch.delenv(name)


@pytest.mark.level2
def test_metrics_of_each_step() -> None:
    run_ranks(measure, ranks=2)


def backward(ddp: torch.nn.Module, rank: int, step: int) -> None:
    ddp.zero_grad()
    ddp(rank, step).backward()


def measure(rank: int) -> None:
    for name, decision in {"int4": "int4 allgather", "star": "topk 0.05 star", "none": "dense"}.items():
        ddp = compressed(Given(), name)
        assert hvd_compress.of(ddp).metrics() == {}
        for step in range(3):
            backward(ddp, rank, step)
        assert "relative_error" not in hvd_compress.of(torch.compile(ddp)).metrics(), "nobody had asked"
        hvd_compress.of(ddp).metrics()  # a second logger asks
        before = remembered(hc.state_dict(ddp))["residuals"]
        backward(ddp, rank, 3)
        found, report = hvd_compress.of(ddp).metrics(), hc.of(ddp).last_step
        assert all(type(figure) is float for figure in found.values())
        assert (found["step"], found["finite"], found["nonfinite_steps"]) == (3, 1, 0)
        assert (found["sent_bytes"], found["wait_s"]) == (report.sent_bytes, report.wait_s)
        assert found["ratio"] == pytest.approx(report.sent_bytes / report.dense_bytes)
        shares = {key: share for key, share in found.items() if key.startswith("decision/")}
        assert sum(shares.values()) == pytest.approx(1)
        assert all(key.startswith(f"decision/{decision}") for key in shares), shares
        if name == "none":
            assert "relative_error" not in found
            continue
        corrected = {n: gradient(n, tuple(p.shape), rank, 3).view(-1) for n, p in ddp.module.named_parameters()}
        whole = sum(float((each + before[n]).square().sum()) for n, each in corrected.items())
        left = sum(float(each.square().sum()) for each in remembered(hc.state_dict(ddp))["residuals"].values())
        assert found["relative_error"] == pytest.approx((left / whole) ** 0.5, rel=1e-3)
        backward(ddp, rank, 4)
        assert hvd_compress.of(ddp).metrics()["relative_error"] != found["relative_error"], "it is of each step"
        backward(ddp, rank, 5)
        backward(ddp, rank, 6)
        assert "relative_error" in hvd_compress.of(ddp).metrics(), "of the last step of which it was wanted"
