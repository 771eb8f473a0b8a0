"""What ranks do in tests of Lightning and Fabric. The tests import it in a process of its own: it takes seconds."""

from __future__ import annotations

import csv
import math
import multiprocessing
import os
import pickle
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import sklearn.datasets  # noqa: F401 - of the example: once, for all ranks
import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision as FabricMixed
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from pytorch_lightning.strategies import DDPStrategy as OtherStrategy
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import hvd_compress
import hvd_compress.ddp as hc
from hvd_compress.errors import ConfigError, UsageError
from hvd_compress.integrations.lightning import CompressGradients, Compression, TakeLocalSteps, compress
from tests.examples import printed_by
from tests.unit.docs.blocks import run_pages
from tests.unit.frontends.ddp.training import check_ranks_equal, flat, make_model

INT4, INT8 = Compression.int4(), Compression.int8()


def ranks_of_lightning(body: Callable[[int, Path], None]) -> Callable[[int], None]:
    """Have Lightning take this process for a rank that was launched; warnings are errors. Both get the same folder."""

    @wraps(body)
    def run(rank: int) -> None:
        os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(dist.get_world_size()))
        warnings.simplefilter("error")
        # said where a machine has cores to spare for loaders, which these tests do not want
        warnings.filterwarnings("ignore", "The 'train_dataloader' does not have many workers")
        # of Lightning itself, with torch 2.15
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        with tempfile.TemporaryDirectory() as own:
            told = [own]
            dist.broadcast_object_list(told)
            body(rank, Path(told[0]))
            dist.barrier()

    return run


class Net(pl.LightningModule):
    """Four layers; without momentum the optimizer has no state, and no scheduler: a second fit() makes a new one."""

    def __init__(self, momentum: float = 0.5, at_step: Callable[[Net, int], None] | None = None) -> None:
        super().__init__()
        self.net, self.momentum, self.at_step, self.losses = make_model(), momentum, at_step, []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.at_step is not None:
            self.at_step(self, batch_idx)
        images, labels = batch
        loss = functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        self.losses.append(float(loss.detach()))
        return loss

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.net(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)
        if self.momentum == 0:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


class OnPlateau(Net):
    """Its rate decays after the second epoch, as the loss is never small enough."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.99, cooldown=9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "train_loss"}}


class Plain(Net):
    """Nothing for Python to do while it trains: it is compiled in less time."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return functional.cross_entropy(self.net(batch[0]), batch[1])


def batches(shuffle: bool = True) -> DataLoader[Any]:
    """Sixteen batches, of which each rank gets eight."""
    images = torch.randn(64, 13, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(images, images[:, :3].argmax(dim=1)), batch_size=4, shuffle=shuffle)


def trainer_of(*callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    place = {"accelerator": "cpu", "devices": 2, "strategy": DDPStrategy(bucket_cap_mb=0.004)}
    return pl.Trainer(**{**place, **quiet, "max_epochs": 2, "callbacks": list(callbacks), **options})


def trained(*callbacks: pl.Callback, module: pl.LightningModule | None = None, **options: Any) -> Any:
    """Return a module that was trained: the same data in the same order each time."""
    pl.seed_everything(0, verbose=False)
    module = Net() if module is None else module
    trainer_of(*callbacks, **options).fit(module, batches())
    check_ranks_equal(module, options)
    return module


def residuals(state: Any) -> dict[str, dict[str, torch.Tensor]]:
    return {name: own["residuals"] for name, own in state["ranks"].items()}


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    return torch.equal(flat(first), flat(second))


@ranks_of_lightning
def trains(rank: int, folder: Path) -> None:
    """Clipping, accumulation, precisions and compiled models, as DDP without compression within what int8 loses."""
    start = flat(Net())
    clipped = {"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}
    for options, ddp in (
        (clipped, {"find_unused_parameters": True}),
        ({"precision": "bf16-mixed"}, {"static_graph": True}),
    ):
        dense, found = (
            trained(*callbacks, strategy=DDPStrategy(bucket_cap_mb=0.004, **ddp), **options)
            for callbacks in ([], [CompressGradients(INT8)])
        )
        moved, off = (flat(dense) - start).norm(), (flat(found) - flat(dense)).norm()
        assert 0 < off < 0.02 * moved, (options, off, moved)
        assert found.losses[-1] == pytest.approx(dense.losses[-1], abs=0.02)
    plain, compiled = trained(CompressGradients(INT8), strategy="ddp", max_epochs=1), Plain()
    pl.seed_everything(0, verbose=False)
    fitted = torch.compile(compiled, backend="eager")
    trainer_of(CompressGradients(INT8), strategy="ddp", max_epochs=1).fit(fitted, batches())
    moved, off = (flat(plain) - start).norm(), (flat(compiled) - flat(plain)).norm()
    assert off < 0.02 * moved


@ranks_of_lightning
def resumes(rank: int, folder: Path) -> None:
    """A checkpoint holds the residuals of all ranks, and what goes on by it has the bits of what never stopped."""

    def callbacks() -> list[pl.Callback]:
        return [CompressGradients(INT4), ModelCheckpoint(folder / "all", filename="{epoch}", save_top_k=-1)]

    whole = trained(*callbacks(), max_epochs=3, enable_checkpointing=True)
    path = folder / "all" / "epoch=0.ckpt"
    saved = torch.load(path, weights_only=True)["callbacks"]["CompressGradients"]
    kept = residuals(saved)
    assert sorted(kept) == ["rank 0 of 2", "rank 1 of 2"]
    assert not all(torch.equal(kept["rank 0 of 2"][name], kept["rank 1 of 2"][name]) for name in kept["rank 0 of 2"])

    def resumed() -> Net:
        module = Net()
        pl.seed_everything(0, verbose=False)
        trainer_of(*callbacks(), max_epochs=3, enable_checkpointing=True).fit(module, batches(), ckpt_path=path)
        return module

    # of Lightning, where a training goes on in the folder of its checkpoints
    warnings.filterwarnings("ignore", "Checkpoint directory .* exists and is not empty")
    assert same(whole, resumed())
    own = torch.load(path, weights_only=True)
    del own["callbacks"]["CompressGradients"]
    dist.barrier()
    if rank == 0:
        torch.save(own, path)
    dist.barrier()
    told = "this checkpoint holds no residuals, as nothing was compressed when it was saved"
    with pytest.warns(UserWarning, match=told) if rank == 0 else nullcontext():
        assert not same(whole, resumed()), "the residuals count"

    light = folder / "light.ckpt"
    module, callback = Net(), CompressGradients(INT4)
    trainer = trainer_of(callback, max_epochs=1)
    pl.seed_everything(0, verbose=False)
    trainer.fit(module, batches())
    if rank == 0:  # nothing is gathered: rank 1 does not come
        trainer._checkpoint_connector.dump_checkpoint(weights_only=True)
    trainer.save_checkpoint(light, weights_only=True)
    assert "callbacks" not in torch.load(light, weights_only=True)
    trainer.save_checkpoint(path)
    after = torch.load(path, weights_only=True)["callbacks"]["CompressGradients"]
    for name, own_residuals in residuals(after).items():
        assert all(torch.equal(own_residuals[key], each) for key, each in kept[name].items()), "saved behind fit()"


@ranks_of_lightning
def fits_again(rank: int, folder: Path) -> None:
    """A second fit() goes on with the residuals, whatever came between."""
    whole = trained(CompressGradients(INT4), module=Net(momentum=0), max_epochs=4)
    module, callback = Net(momentum=0), CompressGradients(INT4)
    trainer = trainer_of(callback, max_epochs=2)
    pl.seed_everything(0, verbose=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The 'test_dataloader' does not have many workers")
        # of Lightning, where a test runs on several ranks
        warnings.filterwarnings("ignore", "Using `DistributedSampler` with the dataloaders")
        trainer.test(module, batches(shuffle=False), verbose=False)
        trainer.fit(module, batches())
        trainer.test(module, batches(shuffle=False), verbose=False)
    trainer.fit_loop.max_epochs = 4
    trainer.fit(module, batches())
    check_ranks_equal(module, "again")
    assert same(whole, module)
    # a model that is not that begins with zeros, as in a search for hyperparameters
    once = trained(CompressGradients(INT4), module=Net(momentum=0))
    assert same(once, trained(callback, module=Net(momentum=0)))


@ranks_of_lightning
def fails(rank: int, folder: Path) -> None:
    """What is saved after an exception waits for no other rank, and training goes on after it."""
    # of Lightning, wherever it looks for such a checkpoint
    warnings.filterwarnings("ignore", r"`.fit\(ckpt_path=None\)` was called without a model")

    def at_step(module: Net, batch_idx: int) -> None:
        if module.global_step == 3:
            raise KeyError("of the program")

    warnings.filterwarnings("ignore", r"\.fit\(ckpt_path=\"last\"\) is set, but there is no last checkpoint")
    callback = CompressGradients(INT4)
    trainer = trainer_of(callback, OnExceptionCheckpoint(folder, "failed"), enable_checkpointing=True)
    module = Net(at_step=at_step)
    with pytest.raises(KeyError, match="of the program"):
        trainer.fit(module, batches())
    if rank == 0:  # alone
        assert list(callback.state_dict()["ranks"]) == ["rank 0 of 2"]
    saved = torch.load(folder / "failed.ckpt", weights_only=True)["callbacks"]["CompressGradients"]
    assert list(saved["ranks"]) == ["rank 0 of 2"]
    module.at_step = None
    own = pytest.warns(UserWarning, match="of rank 0 of 2 are not loaded on rank 1 of 2") if rank else nullcontext()
    with own:
        callback.load_state_dict(saved)
        trainer_of(callback).fit(module, batches())
    check_ranks_equal(module, "after an error")
    assert len(callback.state_dict()["ranks"]) == (2 if rank == 0 else 1)


class ByHand(Net):
    """Two optimizers, each with a backward pass of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.automatic_optimization = torch.nn.Linear(13, 3), False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        for network, optimizer in zip((self.other, self.net), self.optimizers(), strict=True):
            self.toggle_optimizer(optimizer)
            loss = functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(each.parameters(), lr=0.1) for each in (self.other, self.net)]


@ranks_of_lightning
def by_hand(rank: int, folder: Path) -> None:
    """Manual optimization: no warning that DDP has seen no forward pass."""
    options = {"strategy": "ddp_find_unused_parameters_true"}
    start = flat(ByHand())
    dense, found = (trained(*each, module=ByHand(), **options) for each in ([], [CompressGradients(INT8)]))
    moved, off = (flat(dense) - start).norm(), (flat(found) - flat(dense)).norm()
    assert 0 < off < 0.02 * moved, (off, moved)


@ranks_of_lightning
def follows(rank: int, folder: Path) -> None:
    """The loss scale, learning rates and epochs of Accordion, and figures in a logger."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    callback = CompressGradients(INT4)
    trained(callback, plugins=[plugin])
    assert callback.state_dict()["loss_scale"] == scaler.get_scale() > 2.0**10

    callback = CompressGradients(INT4, log=False)
    trained(callback, logger=CSVLogger(folder, version=1), max_epochs=1, log_every_n_steps=4)
    dist.barrier()
    assert "compression" not in (folder / "lightning_logs/version_1/metrics.csv").read_text()

    levels, sent = (
        (Compression.topk(0.5).by(collective="allgather"), Compression.topk(0.05).by(collective="allgather")),
        [],
    )

    class Watch(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            ratios = {round(each.ratio, 1) for each in hc.of(trainer.strategy.model).decisions.values()}
            sent.append((trainer.current_epoch, *ratios))

    accordion = Compression.accordion(*levels, eta=math.inf, every=1)
    options = {"log_every_n_steps": 4, "accumulate_grad_batches": 2, "enable_progress_bar": True}
    logger = CSVLogger(folder, version=2, flush_logs_every_n_steps=1)
    trained(CompressGradients(accordion), Watch(), max_epochs=4, logger=logger, **options)
    expected = [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.1)]
    assert sorted(set(sent[1:])) == expected, "the rate has decayed behind epoch 1"
    sent.clear()
    trained(CompressGradients(accordion), Watch(), max_epochs=4, module=OnPlateau())
    assert sorted(set(sent[1:])) == expected, "and so it has where a scheduler waits for a plateau"
    dist.barrier()
    with (folder / "lightning_logs/version_2/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    told = [row for row in rows if row["compression/ratio"]]
    assert [(int(row["step"]), float(row["compression/step"])) for row in told] == [(n, n) for n in (3, 7, 11, 15)]
    assert [0 < float(row["compression/relative_error"]) < 1 for row in told] == 4 * [True]
    assert len({row["compression/relative_error"] for row in told}) == 4, "each of its own step"
    assert len([row for row in rows if row["train_loss"]]) == 4, "self.log() as usual"


@ranks_of_lightning
def refuses(rank: int, folder: Path) -> None:
    """Wrong use is an error that names the remedy."""
    with pytest.raises(ConfigError, match=r"call it, as in Compression.int4\(\)"):
        CompressGradients(Compression.int4)
    with pytest.raises(RuntimeError, match="more than one stateful callback of type `CompressGradients`"):
        trainer_of(CompressGradients(INT4), CompressGradients(INT8))
    trainer = trainer_of(CompressGradients(INT4))
    trainer.callbacks.append(CompressGradients(INT4))
    with pytest.raises(UsageError, match=r"the Trainer has two callbacks CompressGradients.*: pass one"):
        trainer.fit(Net(), batches())
    hooked = DDPStrategy(ddp_comm_hook=fp16_compress_hook)
    with pytest.raises(UsageError, match=r"DDPStrategy has a ddp_comm_hook.*leave out ddp_comm_hook="):
        trainer_of(CompressGradients(INT4), strategy=hooked).fit(Net(), batches())

    class Unwrapped(DDPStrategy):
        """As those of DeepSpeed and FSDP, which need GPUs."""

        def configure_ddp(self) -> None:
            pass

    with pytest.raises(ConfigError, match=r'Unwrapped does not wrap .* pass Trainer\(strategy="ddp"\); under FSDP2'):
        trainer_of(CompressGradients(INT4), strategy=Unwrapped()).fit(Net(), batches())
    callback = CompressGradients(INT4)
    assert pickle.loads(pickle.dumps(callback)).compression == INT4, "as ddp_spawn does"
    assert callback.state_dict() == {}


@ranks_of_lightning
def with_fabric(rank: int, folder: Path) -> None:
    """Fabric: trains as DDP, and a checkpoint of all ranks goes on to the bit."""

    def set_up(**options: Any) -> Any:
        pl.seed_everything(0, verbose=False)
        fabric = Fabric(accelerator="cpu", devices=2, strategy=FabricDDP(bucket_cap_mb=0.004), **options)
        fabric.launch()
        module = make_model()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.5)
        return fabric, *fabric.setup(module, optimizer), fabric.setup_dataloaders(batches())

    def train(fabric: Fabric, model: Any, optimizer: Any, loader: Any, epochs: int) -> None:
        for _ in range(epochs):
            for number, (images, labels) in enumerate(loader):
                with fabric.no_backward_sync(model, enabled=number % 2 == 0):
                    fabric.backward(functional.cross_entropy(model(images), labels))
                if number % 2:
                    fabric.clip_gradients(model, optimizer, max_norm=0.1)
                    optimizer.step()
                    optimizer.zero_grad()

    fabric, dense, *rest = set_up()
    start = flat(dense)
    train(fabric, dense, *rest, epochs=2)
    fabric, model, optimizer, loader = set_up()
    compression = compress(fabric, model, INT8)
    train(fabric, model, optimizer, loader, epochs=2)
    check_ranks_equal(model, "Fabric")
    assert 0 < (flat(model) - flat(dense)).norm() < 0.02 * (flat(dense) - start).norm()
    assert hc.of(model).last_step.step == 7
    assert hvd_compress.of(model).metrics()["ratio"] < 0.4

    fabric, model, optimizer, loader = set_up()
    state = {"model": model, "optimizer": optimizer, "compression": compress(fabric, model, INT4)}
    train(fabric, model, optimizer, loader, epochs=1)
    fabric.save(folder / "saved", state)
    train(fabric, model, optimizer, loader, epochs=1)
    fabric, again, other, loader = set_up()
    list(loader)  # the first epoch
    restored = {"model": again, "optimizer": other, "compression": compress(fabric, again, INT4)}
    fabric.load(folder / "saved", restored)
    train(fabric, again, other, loader, epochs=1)
    assert same(model, again)
    names = [f"rank {each} of 2" for each in range(2)]
    assert list(torch.load(folder / "saved", weights_only=True)["compression"]["ranks"]) == names

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    fabric, model, optimizer, loader = set_up(plugins=[FabricMixed("16-mixed", "cpu", scaler)])
    compression = compress(fabric, model, INT4)
    for images, labels in loader:
        fabric.backward(functional.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
    saved = compression.state_dict()["loss_scale"]
    assert saved == scaler.get_scale() > 2.0**10

    with pytest.raises(ConfigError, match=r"this Sequential was not set up: model, optimizer = fabric.setup"):
        compress(fabric, make_model(), INT4)
    with pytest.raises(UsageError, match="compressed already"):
        compress(fabric, model, INT8)
    assert type(compress(fabric, model, INT4)) is type(compression), "the same again"
    with pytest.raises(ConfigError, match=r"is a function: call it"):
        compress(fabric, model, Compression.int4)
    fabric._strategy.setup_module = lambda module: module  # as that of FSDP, which needs GPUs
    unwrapped = fabric.setup_module(make_model())
    with pytest.raises(ConfigError, match=r'DDPStrategy does not wrap .* pass Fabric\(strategy="ddp"\); under FSDP2'):
        compress(fabric, unwrapped, INT4)


@ranks_of_lightning
def in_pytorch_lightning(rank: int, folder: Path) -> None:
    """The other package takes the same callback."""

    class Other(pytorch_lightning.LightningModule):
        training_step, configure_optimizers = Net.training_step, Net.configure_optimizers

        def __init__(self) -> None:
            super().__init__()
            self.net, self.momentum, self.at_step, self.losses = make_model(), 0.5, None, []

    module = Other()
    pl.seed_everything(0, verbose=False)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    strategy = OtherStrategy(bucket_cap_mb=0.004)
    options = {"accelerator": "cpu", "devices": 2, "strategy": strategy, "max_epochs": 2, **quiet}
    pytorch_lightning.Trainer(callbacks=[CompressGradients(INT4)], **options).fit(module, batches())
    assert same(module, trained(CompressGradients(INT4)))


@ranks_of_lightning
def the_example(rank: int, folder: Path) -> None:
    """As torchrun starts it."""
    os.chdir(folder)
    printed_by("lightning_images.py", "--steps", "5")


@ranks_of_lightning
def the_pages(rank: int, folder: Path) -> None:
    """The blocks of Python in docs/."""

    def begin(names: dict[str, Any]) -> None:
        def train() -> None:
            names["fabric"].backward(functional.cross_entropy(names["model"](images), labels))
            names["optimizer"].step()

        images, labels = next(iter(batches(shuffle=False)))
        model = make_model()
        names.update(module=Net(momentum=0), data=batches(), model=model, train=train)
        names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)

    os.chdir(folder)
    warnings.filterwarnings("ignore", r"The number of training batches \(8\) is smaller than the logging interval")
    run_pages("lightning", begin)


def in_forked_ranks(rank: int) -> None:
    """The ranks are processes of the strategy: what they remember is in the checkpoints that they write."""
    dist.destroy_process_group()
    multiprocessing.current_process()._config["daemon"] = False  # may have children
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder, "last.ckpt")
        options = {"strategy": "ddp_fork", "max_epochs": 1, "enable_checkpointing": True}
        trainer_of(CompressGradients(INT4), ModelCheckpoint(folder, save_last=True), **options).fit(Net(), batches())
        found = residuals(torch.load(last, weights_only=True)["callbacks"]["CompressGradients"])
        assert sorted(found) == ["rank 0 of 2", "rank 1 of 2"]


@ranks_of_lightning
def in_one_process(rank: int, folder: Path) -> None:
    """Nothing is compressed, which is said once, and all else goes on."""
    module, callback = Net(momentum=0), CompressGradients(Compression.accordion(INT8, INT4))
    options = {"strategy": "auto", "devices": 1, "logger": CSVLogger(folder), "log_every_n_steps": 4}
    trainer = trainer_of(callback, **options)
    with pytest.warns(UserWarning, match="there is one process, so no gradients are exchanged") as told:
        trainer.fit(module, batches())
    assert [each.filename for each in told if "one process" in str(each.message)] == [__file__], "the program's line"
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, batches())
    trainer.save_checkpoint(folder / "saved")
    assert len(module.losses) == 48


@ranks_of_lightning
def takes_local_steps(rank: int, folder: Path) -> None:
    """Ranks are apart within an epoch, and agree on what is saved and at the end."""
    apart: list[bool] = []

    def look(module: Net, _: int) -> None:
        found: list[Any] = [None, None]
        dist.all_gather_object(found, flat(module))
        apart.append(not torch.equal(*found))

    local = TakeLocalSteps(every=5, start_after=2)
    saves = ModelCheckpoint(dirpath=folder, filename="last", save_top_k=-1, every_n_epochs=1)
    trainer = pl.Trainer(
        max_epochs=2, strategy="ddp", accelerator="cpu", devices=2, callbacks=[local, saves], logger=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    module = Net(at_step=look)
    trainer.fit(module, batches())
    check_ranks_equal(module, "fit()")
    assert apart[:3] == [False] * 3
    assert all(apart[3:7]), apart
    assert not apart[8], "the second epoch begins with what was agreed on"
    if rank == 0:
        saved = torch.load(saves.best_model_path, weights_only=True)["state_dict"]
        assert all(torch.equal(saved[name], each) for name, each in module.state_dict().items())
