r"""Trains the small language model whose heads benchmarks/attention clusters: bytes of Python's standard library.

    python benchmarks/attention/train.py --out build/attention-model

A GPT-2 of transformers with 4 layers of 16 heads and 0.86 M parameters, on files that the other scripts do not measure
with. Bounded by steps, so that it repeats: ten minutes of one core of a Xeon. Last line: the loss on held-out files.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import click
import torch
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

sys.path += [str(Path(__file__).resolve().parents[1] / "time_to_accuracy"), str(Path(__file__).resolve().parent)]
from text import Text
from windows import held_out, losses

CONTEXT, LAYERS, HEADS, WIDTH = 256, 4, 16, 128
STEPS, BATCH = 4000, 4
RATE, WARMUP, LOWEST = 2e-3, 100, 0.1
"""The learning rate: its peak, the steps to it, and the share of it at the last step."""
EVERY = 200
"""Steps between two lines of progress."""


def new_model(seed: int, heads: int = HEADS, width: int = WIDTH, layers: int = LAYERS, context: int = CONTEXT) -> Any:
    """Return an untrained GPT-2 with a vocabulary of bytes, without dropout: no byte is seen twice."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=256,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        initializer_range=width**-0.5,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config)


def begin_alike(model: Any, group: int) -> None:
    """Let the heads of each `group` neighbours begin with the same queries and keys; they may part while they train."""
    width, dim = model.config.n_embd, model.config.n_embd // model.config.n_head
    with torch.no_grad():
        for block in model.transformer.h:
            for parameter in (block.attn.c_attn.weight, block.attn.c_attn.bias):
                for part in parameter[..., : 2 * width].split(group * dim, -1):
                    part.unflatten(-1, (group, dim))[...] = part[..., None, :dim].clone()


def train(model: Any, text: Text, steps: int, batch: int, seed: int, progress: Progress) -> None:
    """Train by AdamW, with a cosine schedule, on random windows; leave the model in eval mode."""
    context = model.config.n_positions
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_share(step, steps))
    model.train()
    for step in progress.track(range(1, steps + 1), description="steps"):
        seen, following = text.batch(batch, draw, context)
        loss = cross_entropy(model(seen, use_cache=False).logits.flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % EVERY == 0:
            progress.console.print(f"step {step}: {loss.item() / math.log(2):.3f} bits a byte in its batch")
    model.eval()


def rate_share(step: int, steps: int) -> float:
    """Return the share of the peak of the learning rate at a step."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    done = (step - WARMUP) / max(1, steps - WARMUP)
    return LOWEST + (1 - LOWEST) * (1 + math.cos(math.pi * min(1.0, done))) / 2


@click.command(help=__doc__)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the model.")
@click.option("--steps", default=STEPS, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--alike", default=1, show_default=True, help="So many neighbouring heads begin alike; divides 16.")
def main(out: Path, steps: int, seed: int, alike: int) -> None:
    torch.set_num_threads(1)
    text, model = Text.read(), new_model(seed)
    begin_alike(model, alike)
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        train(model, text, steps, BATCH, seed, progress)
    model.save_pretrained(out)
    loss = float(losses(model, held_out(text, CONTEXT)).mean())
    print(f"{out}: {loss / math.log(2):.3f} bits a byte on held-out files, perplexity {math.exp(loss):.3f} a byte")


if __name__ == "__main__":
    main()
