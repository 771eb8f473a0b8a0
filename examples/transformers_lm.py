"""Train a GPT-2 of the bytes of Python's standard library, with transformers' Trainer and compressed gradients.

    torchrun --nproc-per-node 2 examples/transformers_lm.py --steps 100 --folder build/transformers_lm

With --resume it goes on with the last checkpoint: parameters, optimizer, and the residuals of each rank.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from hvd_compress.integrations.transformers import CompressGradients, Compression


class Bytes(torch.utils.data.Dataset):
    def __init__(self, length: int) -> None:
        text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")))
        data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self.sequences = data[: len(data) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.sequences[index].long()
        return {"input_ids": tokens, "labels": tokens}


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--compression", default="auto", help="auto, int8, int4, ...")
parser.add_argument("--folder", default="build/transformers_lm", help="of checkpoints")
parser.add_argument("--resume", action="store_true")
options = parser.parse_args()

sizes = {"vocab_size": 256, "n_positions": 128, "n_embd": options.width, "n_layer": 2, "n_head": 4}
arguments = TrainingArguments(
    output_dir=options.folder,
    use_cpu=not torch.cuda.is_available(),
    max_steps=options.steps,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    learning_rate=0.002,
    logging_steps=10,
    report_to=[],
    ddp_find_unused_parameters=False,
)
compression = getattr(Compression, options.compression)()
model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
trainer = Trainer(model, arguments, train_dataset=Bytes(128), callbacks=[CompressGradients(compression)])
trainer.train(resume_from_checkpoint=options.resume)
