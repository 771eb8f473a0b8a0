"""Train a small convolutional net on scikit-learn's digits with Lightning, with compressed gradients.

    torchrun --nproc-per-node 2 examples/lightning_images.py --steps 50

Without torchrun, Lightning starts the processes. What compresses is one line, the callback.
"""

from __future__ import annotations

import argparse

import lightning.pytorch as pl
import torch
from images.data import load_digits
from images.model import SmallConvNet
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from hvd_compress.integrations.lightning import CompressGradients, Compression


class Digits(pl.LightningModule):
    """What Lightning trains: nothing here knows of ranks, or of compression."""

    def __init__(self) -> None:
        super().__init__()
        self.net = SmallConvNet()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self.net(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=50, help="steps of the training")
    parser.add_argument("--ranks", type=int, default=2, help="processes, as many as torchrun was told")
    options = parser.parse_args()
    digits = load_digits().train
    data = DataLoader(TensorDataset(*digits.batch(torch.arange(len(digits.labels)))), batch_size=32, shuffle=True)
    pl.seed_everything(0)
    trainer = pl.Trainer(
        max_steps=options.steps,
        accelerator="cpu",
        devices=options.ranks,
        strategy="ddp",
        log_every_n_steps=5,  # lightning_logs/ then holds compression/ratio and others beside train_loss
        callbacks=[CompressGradients(Compression.int4())],
    )
    trainer.fit(Digits(), data)


if __name__ == "__main__":
    main()
