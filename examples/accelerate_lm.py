"""Train a model of the bytes of Python's standard library, with Accelerate. Started again with more steps, it goes on.

torchrun --nproc-per-node 2 examples/accelerate_lm.py --steps 100 --folder build/accelerate_lm
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from hvd_compress import of
from hvd_compress.integrations.accelerate import Compression, compress


class ByteModel(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(256, width), torch.nn.Linear(width, 256)
        self.cells = torch.nn.GRU(width, width, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.cells(self.embedding(tokens[:, :-1]))[0])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100, help="of two batches each")
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--compression", default="auto", help="auto, int8, int4, ...")
parser.add_argument("--folder", help="where a checkpoint is, or will be")
options = parser.parse_args()

torch.manual_seed(0)
text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))
data = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: len(text) // 128 * 128].view(-1, 128)
accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
model = ByteModel(options.width)
optimizer, loader = torch.optim.AdamW(model.parameters(), lr=0.002), DataLoader(data, batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
compress(accelerator, model, getattr(Compression, options.compression)())
if options.folder and Path(options.folder).exists():
    accelerator.load_state(options.folder)  # behind compress()

numbers = range(accelerator.step, 2 * options.steps)
for number, batch in zip(numbers, accelerator.skip_first_batches(loader, accelerator.step), strict=False):
    with accelerator.accumulate(model):
        loss = model(batch.long())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if number % 20 == 1:
        accelerator.print(f"step {number // 2 + 1}: loss {loss.item():.3f}", of(model).metrics())
if options.folder:
    accelerator.save_state(options.folder)
accelerator.end_training()
