"""transformers' Trainer with CompressGradients: two ranks over gloo, and one process by itself."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import hvd_compress.ddp as hc
import tests.supported_transformers  # noqa: F401
from hvd_compress.errors import ConfigError, UnsupportedError, UsageError
from tests.examples import printed_by
from tests.unit.docs.blocks import run_pages
from tests.unit.frontends.ddp.job import run_ranks
from tests.unit.frontends.ddp.training import check_ranks_equal, flat
from tests.unit.integrations.launched import COMPILER, launched, strictly

INT4, INT8 = hc.Compression.int4(), hc.Compression.int8()
IMPORTED = ("hvd_compress.integrations.transformers", "transformers.models.gpt2.modeling_gpt2", COMPILER)
FILES = ["hvd_compress_0.pt", "hvd_compress_1.pt"]


class Texts(torch.utils.data.Dataset):
    """Sequences of bytes that count up, each from a byte of its own."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (index + torch.arange(16)) % 64
        return {"input_ids": tokens, "labels": tokens}


class Small(torch.nn.Module):
    """What Trainer takes beside models of transformers: it is compiled in less time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.output = torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.output(torch.tanh(self.embedding(input_ids)))
        return {"loss": functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())}


def gpt2(dropout: float = 0.0) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropouts, bos_token_id=0, eos_token_id=0))


def trainer_of(folder: Path, request: Any = None, model: Any = None, callbacks: Any = (), **options: Any) -> Any:
    """A step is two batches on each rank, and gradients are clipped."""
    from accelerate.state import AcceleratorState, GradientState
    from transformers import Trainer, TrainingArguments

    from hvd_compress.integrations.transformers import CompressGradients

    AcceleratorState._reset_state(True)  # all trainers of a process share it
    GradientState._reset_state()
    given = {
        "max_steps": 8,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.1,
        "learning_rate": 0.5,
        "optim": "sgd",
        "optim_args": "momentum=0.5",
        "per_device_train_batch_size": 4,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "ddp_find_unused_parameters": False,
        **options,
    }
    ours = [] if request is None else [CompressGradients(request)]
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, **given)
    return Trainer(
        model or gpt2(), arguments, train_dataset=Texts(), eval_dataset=Texts(), callbacks=[*callbacks, *ours]
    )


def parameters_after(trainer: Any, **options: Any) -> torch.Tensor:
    trainer.train(**options)
    if dist.is_initialized():
        check_ranks_equal(trainer.model, "train()")
    return flat(trainer.model)


def test_two_ranks() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(
            train_two_ranks, Path(folder), ranks=2, imports=IMPORTED, HF_HUB_OFFLINE="1", HVD_COMPRESS_CHECK_EVERY="3"
        )


def train_two_ranks(rank: int, folder: Path) -> None:
    with launched(rank, 2):
        clipped_and_accumulated_as_dense(folder / "dense")
        resumed_as_never_interrupted(rank, folder / "kept")
        mixed_precision_and_compiled(folder / "mixed")
        epochs_and_learning_rates_are_told(folder / "epochs")
        a_trial_keeps_nothing(folder / "trial")
        takes_local_steps(folder / "local")
        refused(folder / "refused")
        run_pages_of_docs(folder / "pages")
        run_example(folder / "example")
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        alone(folder)


def clipped_and_accumulated_as_dense(folder: Path) -> None:
    from transformers import TrainerCallback

    class Reports(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **parts: Any) -> None:
            reported.append(dict(logs))

    reported: list[dict[str, float]] = []
    dense, int8, int4 = trainer_of(folder), trainer_of(folder, INT8), trainer_of(folder, INT4, callbacks=[Reports()])
    begun = flat(gpt2())
    exact, near, far = (parameters_after(each) - begun for each in (dense, int8, int4))
    assert (near - exact).norm() < 0.01 * exact.norm()
    assert 0.01 * exact.norm() < (far - exact).norm() < 0.2 * exact.norm()
    (expected, close, last) = (each.state.log_history[-2] for each in (dense, int8, int4))
    assert abs(close["loss"] - expected["loss"]) < 0.001
    assert abs(last["loss"] - expected["loss"]) < 0.02
    assert expected["grad_norm"] > 0.1, "gradients were clipped"
    figures = {name for name in last if name.startswith("compression/")}
    if dist.get_rank() == 0:
        assert {"compression/ratio", "compression/wait_s", "compression/relative_error"} < figures
        assert 0.1 < last["compression/ratio"] < 0.2
        assert figures < reported[-2].keys(), "what reports comes before this callback, and sees what it logs"
    assert type(int4.model_wrapped) is DistributedDataParallel
    assert hc.of(int4.model_wrapped).decisions
    assert int4.evaluate()["eval_loss"] == int4.predict(Texts()).metrics["test_loss"]
    before = flat(int4.model)
    assert not torch.equal(parameters_after(int4), before), "a second train()"
    assert hc.of(int4.model_wrapped).last_step.step == 15


def resumed_as_never_interrupted(rank: int, folder: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    expected = parameters_after(trainer_of(folder, INT4, gpt2(0.1), **saving))
    assert sorted(each.name for each in folder.iterdir()) == ["checkpoint-6", "checkpoint-8"]
    saved = torch.load(folder / "checkpoint-6" / FILES[rank], weights_only=True)
    assert list(saved["ranks"]) == [f"rank {rank} of 2"]
    assert all(each.any() for part in saved["ranks"].values() for each in part["residuals"].values())
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder / "checkpoint-8")
        shutil.copytree(folder / "checkpoint-6", folder / "without", ignore=shutil.ignore_patterns(*FILES))
    dist.barrier()
    again = trainer_of(folder, INT4, gpt2(0.1))
    assert torch.equal(parameters_after(again, resume_from_checkpoint=True), expected)
    elsewhere = trainer_of(folder / "other", INT4, gpt2(0.1), **saving, save_only_model=True)
    assert torch.equal(parameters_after(elsewhere, resume_from_checkpoint=str(folder / "checkpoint-6")), expected)
    assert (folder / "other" / "checkpoint-8" / "model.safetensors").exists()
    assert not [*(folder / "other" / "checkpoint-8").glob("hvd*")]
    with pytest.warns(UserWarning, match="nothing was compressed when it was saved: residuals begin with zeros"):
        found = parameters_after(trainer_of(folder, INT4, gpt2(0.1)), resume_from_checkpoint=str(folder / "without"))
    assert not torch.equal(found, expected)
    dist.barrier()
    whole = (folder / "checkpoint-6" / FILES[rank]).read_bytes()
    (folder / "without" / FILES[rank]).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"hvd_compress_\d.pt cannot be read: .*; resume from another checkpoint"):
        trainer_of(folder, INT4, gpt2()).train(resume_from_checkpoint=str(folder / "without"))


def mixed_precision_and_compiled(folder: Path) -> None:
    expected = parameters_after(trainer_of(folder, INT4, Small(), max_grad_norm=0.0))
    scaled = trainer_of(folder, INT4, Small(), max_grad_norm=0.0)
    scaled.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)  # none on CPUs else
    assert torch.equal(parameters_after(scaled), expected), "a residual was not in the units of the loss scale"
    assert hc.state_dict(scaled.model_wrapped)["loss_scale"] == scaled.accelerator.scaler.get_scale() == 2.0**14
    half = trainer_of(folder, INT4, Small(), max_grad_norm=0.0, bf16=True)
    assert 0 < (parameters_after(half) - expected).norm() < 0.1 * (expected - flat(Small())).norm()
    compiled = trainer_of(folder, INT4, Small(), max_grad_norm=0.0, torch_compile=True, torch_compile_backend="eager")
    assert torch.equal(parameters_after(compiled), expected)
    assert isinstance(compiled.model_wrapped, torch._dynamo.OptimizedModule)
    assert hc.of(compiled.model_wrapped).decisions


def takes_local_steps(folder: Path) -> None:
    """Ranks agree on what is saved, and at the end; between exchanges they do not."""
    from safetensors.torch import load_file
    from transformers import TrainerCallback

    from hvd_compress.integrations.transformers import TakeLocalSteps

    apart: list[bool] = []

    class Looks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            found: list[Any] = [None, None]
            dist.all_gather_object(found, flat(parts["model"]))
            apart.append(not torch.equal(*found))

    local = TakeLocalSteps(every=4, start_after=1)
    trainer = trainer_of(folder, model=Small(), callbacks=[Looks(), local], save_strategy="steps", save_steps=3)
    parameters_after(trainer)
    # Saved behind steps 3, 6 and 8, where a round ends; and what follows is local again.
    assert apart == [False, True, True, True, True, True, True, True], apart
    saved = load_file(folder / "checkpoint-8" / "model.safetensors")
    assert all(torch.equal(saved[name], each) for name, each in trainer.model.state_dict().items())
    assert local.local is not None
    assert hc.of(local.local).last_step is not None
    dist.barrier()


def epochs_and_learning_rates_are_told(folder: Path) -> None:
    levels = (hc.Compression.topk(0.5).by(collective="allgather"), hc.Compression.topk(0.05).by(collective="allgather"))
    request = hc.Compression.accordion(*levels, eta=math.inf, every=1)
    trainer = trainer_of(folder, request, Small(), max_steps=20)  # of 4 steps an epoch; rates decay in each step
    trainer.train()
    assert any(
        "the learning rate has decayed" in each.reason
        for each in hc.of(trainer.model_wrapped).controller.history.events
    )
    waits = {"patience": 0, "threshold": 0.99, "cooldown": 9}  # it decays behind the second epoch
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": waits, "eval_strategy": "epoch"}
    trainer = trainer_of(folder, request, Small(), max_steps=12, metric_for_best_model="loss", **plateau)
    trainer.train()
    report = hc.of(trainer.model_wrapped).last_step
    assert report.sent_bytes > 0.5 * report.dense_bytes, "the third epoch knows of it"


def a_trial_keeps_nothing(folder: Path) -> None:
    """hyperparameter_search() gives each trial a folder of its own, and begins anew."""
    from transformers import TrainerCallback

    class Searching(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            state.is_hyper_param_search = True

    options = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    trainer_of(folder, INT4, Small(), callbacks=[Searching()], **options).train()
    assert (folder / "checkpoint-1").exists()
    assert not [*(folder / "checkpoint-1").glob("hvd*")]


def refused(folder: Path) -> None:
    from accelerate.utils import DistributedType
    from transformers import TrainerCallback

    from hvd_compress.integrations.transformers import CompressGradients

    class Sharding(TrainerCallback):
        """Neither runs here: DeepSpeed wants its package, and FSDP a GPU."""

        def __init__(self, kind: str) -> None:
            self.kind = DistributedType[kind]

        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            parts["optimizer"].accelerator_state.distributed_type = self.kind

    # with accelerate 1.14 and 1.15 such a Trainer trains without DistributedDataParallel
    early = trainer_of(folder, INT4, Small())
    early.evaluate()
    with pytest.raises(ConfigError, match=r"each rank would train by itself: .* has prepared before train\(\): call"):
        early.train()
    with pytest.raises(ConfigError, match=r"is a function: call it, as in Compression.int4\(\)"):
        CompressGradients(hc.Compression.int4)
    with pytest.raises(UnsupportedError, match=r"no Trainer has called it: pass it as Trainer\(callbacks="):
        CompressGradients(INT8).on_train_begin(None, None, None)
    again = trainer_of(folder, INT4, Small(), max_steps=1)
    again.train()
    again.remove_callback(CompressGradients)
    again.add_callback(CompressGradients(INT8))
    with pytest.raises(UsageError, match="compressed already, by"):
        again.train()
    for kind, remedy in (("FSDP", "train without .* fsdp="), ("DEEPSPEED", "train without .* deepspeed=")):
        sharded = trainer_of(folder, INT4, Small(), callbacks=[Sharding(kind)])
        with pytest.raises(UnsupportedError, match=remedy):
            sharded.train()


def run_example(folder: Path) -> None:
    printed = printed_by("transformers_lm.py", "--steps", "2", "--width", "16", "--folder", str(folder))
    assert ("train_loss" in printed) == (dist.get_rank() == 0)
    printed_by("transformers_lm.py", "--steps", "3", "--width", "16", "--folder", str(folder), "--resume")
    assert {f"checkpoint-{step}" for step in (2, 3)} == {each.name for each in folder.iterdir()}
    assert (folder / "checkpoint-3" / FILES[dist.get_rank()]).exists()


def run_pages_of_docs(folder: Path) -> None:
    from transformers import TrainingArguments

    def begin(names: dict[str, Any]) -> None:
        args = TrainingArguments(str(folder), use_cpu=True, max_steps=2, report_to=[], disable_tqdm=True)
        names.update(model=Small(), args=args, data=Texts())

    run_pages("transformers", begin)


def alone(folder: Path) -> None:
    """The same program on a laptop takes and writes the same checkpoints."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name)
    one = trainer_of(folder / "one", INT4, gpt2(), save_strategy="steps", save_steps=8)
    with strictly(), pytest.warns(UserWarning, match="there is one process, so no gradients are exchanged") as told:
        one.train(resume_from_checkpoint=str(folder / "kept" / "checkpoint-6"))
    assert told[0].filename == __file__
    saved = torch.load(folder / "one" / "checkpoint-8" / FILES[0], weights_only=True)
    assert list(saved["ranks"]) == ["rank 0 of 1"]
    assert all(each.any() for each in saved["ranks"]["rank 0 of 1"]["residuals"].values()), "the mean of two ranks"
