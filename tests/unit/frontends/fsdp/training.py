"""What the tests of FSDP share: a small language model, ways to shard it, and steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

import hvd_compress.fsdp as hc
from hvd_compress.frontends.fsdp.gathers import Gathers, for_gathers
from hvd_compress.request.request import Request
from tests.unit.frontends.fsdp.rounded import install

WORDS, WIDTH, BLOCKS = 31, 96, 3
STEPS = 20
FORMS = (for_gathers(hc.Compression.int8()), hc.differences(hc.Compression.int4()))
"""Gathers with which all that holds for compressed gradients has to hold, too."""
BITS = {8: hc.Compression.int8(), 4: hc.Compression.int4()}


class Model(nn.Module):
    """Its embedding's gradients come last, within FSDP's own end of the backward pass; its last bias is uneven."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH))
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(WIDTH, WORDS)
        self.is_reversed = False
        self.checkpoint: Callable[..., torch.Tensor] | None = None

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found = self.embed(words)
        for block in reversed(self.blocks) if self.is_reversed else self.blocks:
            if not getattr(block, "left_out", False):
                found = found + (self.checkpoint(block, found) if self.checkpoint is not None else block(found))
        result: torch.Tensor = self.head(found)
        return result


def mesh_of(*sizes: int) -> DeviceMesh:
    names = ("replicas", "shards")[-len(sizes) :]
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def sharded(mesh: DeviceMesh, apply: Callable[..., Any] = fully_shard, **options: Any) -> Any:
    """Return the same model in each call, distributed module by module."""
    torch.manual_seed(0)
    model = Model()
    for block in model.blocks:
        apply(block, mesh=mesh, **options)
    return apply(model, mesh=mesh, **options)


_form: Gathers | None = None


@contextmanager
def gathering(form: Gathers) -> Iterator[None]:
    """Within this block all models that are compressed gather so, and uncompressed ones as if."""
    global _form
    _form = form
    yield
    _form = None


def compress(model: Any, request: Request | None, **options: Any) -> Any:
    """Return the model, compressed; with None as FSDP2 itself trains it."""
    if request is None:
        return model if _form is None else install(model, _form)
    return hc.compress(model, request, parameters=_form, **options)


def compressed(mesh: DeviceMesh, request: Request | None, feedback: bool = False, **options: Any) -> Any:
    return compress(sharded(mesh, **options), request, feedback=feedback)


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    """Of a batch of this rank's own: each word is followed by one of four."""
    draw = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    words = torch.randint(0, WORDS, (8, 8), generator=draw)
    following = words * 7 + torch.randint(0, 4, words.shape, generator=draw)
    return functional.cross_entropy(model(words).float().flatten(0, 1), following.remainder(WORDS).flatten())


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int], clip: float = 1.0) -> list[float]:
    """Take steps, with clipped gradients; return their losses."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def trained_in_parts(mesh: DeviceMesh, request: Request | None) -> Any:
    """Return a model of which a block and half of one were frozen for some steps, and half of one until the middle."""
    model: Any = sharded(mesh)
    model.blocks[2][2].weight.requires_grad_(False)
    compress(model, request)
    changes = {
        2: [(model.blocks[0], False)],
        4: [(model.blocks[1][0], False)],
        6: [(model.blocks[2][2].weight, True), (model.blocks[1][0], True)],
        8: [(model.blocks[0], True), (model.head.bias, False)],
    }
    optimizer = adam(model)
    for step in range(10):
        for part, is_trained in changes.get(step, ()):
            part.requires_grad_(is_trained)
        train(model, optimizer, [step])
    return model


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return found.detach()


def parameters(model: nn.Module) -> torch.Tensor:
    """Return this rank's shards, one behind the other."""
    return torch.cat([local(each).reshape(-1).clone() for each in model.parameters()])


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([local(each.grad).reshape(-1).clone() for each in model.parameters()])


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of all ranks, of any lengths."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, tensor)
    return found


def assert_near(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Gradients differ by the rounding of int8, and of bf16."""
    assert 0 < (found - expected).norm() < 0.02 * expected.norm()


def reduced_as_bf16(mesh: DeviceMesh) -> torch.Tensor:
    """Return gradients of an uncompressed model that are reduced as bf16; those by int8 are near, and of fp32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    plain, int8 = (compressed(mesh, request, mp_policy=policy) for request in (None, hc.Compression.int8()))
    loss_of(plain, 0).backward()
    loss_of(int8, 0).backward()
    assert {each.grad.dtype for each in int8.parameters()} == {torch.float32}
    assert_near(gradients(int8), gradients(plain))
    return gradients(plain)


def end_loss(model: Any) -> float:
    """Return the mean loss of the last 4 of 20 steps, which have learnt something."""
    losses = train(model, adam(model), range(STEPS))
    assert fmean(losses[-4:]) < losses[0] - 0.5, losses
    return fmean(losses[-4:])


def learned(mesh: DeviceMesh, bits: int, uncompressed: float, feedback: bool = False) -> Any:
    """Return a model that has learnt what an uncompressed one does, with `bits` an element of a gradient."""
    model = compressed(mesh, BITS[bits], feedback)
    loss, report = end_loss(model), hc.of(model).last_step
    assert abs(loss - uncompressed) < 0.05, (bits, feedback, loss, uncompressed)
    assert report is not None
    assert report.sent_bytes <= (bits + 0.3) / 32 * report.dense_bytes, (bits, report)
    return model


def resumed(mesh: DeviceMesh, request: Request, feedback: bool = False) -> tuple[Any, Any, dict[str, Any]]:
    """Return a model trained by 6 steps, one that was interrupted and resumed after 3, and what was saved of it."""
    whole, model = (compressed(mesh, request, feedback) for _ in range(2))
    optimizer, again = adam(whole), adam(model)
    train(whole, optimizer, range(3))
    saved = copy.deepcopy((whole.state_dict(), optimizer.state_dict(), hc.state_dict(whole)))
    train(whole, optimizer, range(3, 6))
    model.load_state_dict(saved[0])
    again.load_state_dict(saved[1])
    hc.load_state_dict(model, saved[2])
    train(model, again, range(3, 6))
    return whole, model, saved[2]


def trained_with_errors(mesh: DeviceMesh, request: Request, feedback: bool, fails: int) -> Any:
    """Return a model after three steps; in `fails` backward passes beside them, 0 or 2, memory ran out."""
    model = compressed(mesh, request, feedback)
    optimizer = adam(model)
    for step in range(3):
        if fails and step != 1:
            _run_out(model, step)
        train(model, optimizer, [step])
    assert hc.of(model).last_step.nonfinite_steps == fails
    return model


def check_given_up(mesh: DeviceMesh, request: Request, feedback: bool = False) -> None:
    """Steps that an error has ended leave nothing, to the bit; but forward passes bring copies of gathers nearer."""
    found, expected = (parameters(trained_with_errors(mesh, request, feedback, fails)) for fails in (0, 2))
    if _form is not None and _form.of_differences:
        assert_near(found, expected)
    else:
        assert torch.equal(found, expected)


def check_divided(mesh: DeviceMesh) -> None:
    """Gradients are divided by the factor that FSDP was given, or by the number of ranks."""
    for factor, is_summed in ((None, True), (3.0, True), (3.0, False)):
        found = []
        for request in (None, hc.Compression.dense()):
            model = compressed(mesh, request)
            model.set_force_sum_reduction_for_comms(is_summed or request is None)  # gloo has no other with a factor
            if factor is not None:
                model.set_gradient_divide_factor(factor)
            if is_summed or mesh.ndim == 1 or request is None:
                loss_of(model, 0).backward()
                found.append(gradients(model))
        if len(found) == 2:
            torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


def _run_out(model: Any, step: int) -> None:
    hook = model.blocks[1].register_full_backward_pre_hook(_no_memory)
    with pytest.raises(torch.OutOfMemoryError, match="of this test"):
        loss_of(model, step).backward()
    hook.remove()
    model.reset_iter_state()


def _no_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("of this test")


def check_gathered(mesh: DeviceMesh, ranks: int, feedback: bool = False) -> None:
    """What all ranks remember is gathered on rank 0 before the first step and after it, and each takes its own back."""
    model, again = (compressed(mesh, hc.Compression.int4(), feedback) for _ in range(2))
    for _ in range(2):
        found = [hc.of(model).gathered_state_dict()]
        if dist.get_rank() == 0:
            assert len(found[0]["ranks"]) == ranks
        dist.broadcast_object_list(found, 0)
        hc.of(again).load_gathered_state_dict(found[0])
        (was,), (now,) = (hc.state_dict(each)["ranks"].values() for each in (model, again))
        assert all(torch.equal(now["residuals"][name], each) for name, each in was["residuals"].items())
        train(model, adam(model), range(1))
