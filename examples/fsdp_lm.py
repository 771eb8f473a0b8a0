"""Train a byte-level language model on Python's own sources with FSDP2, and send its gradients as 4 bits.

torchrun --nproc-per-node 2 examples/fsdp_lm.py                  # 2 shards
torchrun --nproc-per-node 4 examples/fsdp_lm.py 200 2            # 200 steps, HSDP: 2 replicas of 2 shards each
torchrun --nproc-per-node 2 examples/fsdp_lm.py 200 1 int8       # parameters as 8 bits; or `differences`, as 4
"""

import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hvd_compress.fsdp as hc

CONTEXT, WIDTH = 64, 128
STEPS, REPLICAS = (int(word) for word in (*sys.argv[1:3], *("100", "1")[len(sys.argv) - 1 :]))
FORMS = {"exact": None, "int8": hc.Compression.int8(), "differences": hc.differences(hc.Compression.int4())}


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 512, batch_first=True) for _ in range(3))
        self.scores = nn.Linear(WIDTH, 256)

    def forward(self, text):
        hidden = self.bytes(text) + self.places(torch.arange(CONTEXT))
        for block in self.blocks:
            hidden = block(hidden, nn.Transformer.generate_square_subsequent_mask(CONTEXT), is_causal=True)
        return self.scores(hidden)


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (REPLICAS, dist.get_world_size() // REPLICAS), mesh_dim_names=("replicas", "shards"))
torch.manual_seed(0)  # the same model on every rank
model = LanguageModel()
for module in (*model.blocks, model):  # the root last
    fully_shard(module, mesh=mesh if REPLICAS > 1 else mesh["shards"])
hc.compress(model, hc.Compression.int4(), parameters=FORMS[(*sys.argv[3:], "exact")[0]])
sources = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
text = torch.frombuffer(bytearray(sources), dtype=torch.uint8)
optimizer, draw = torch.optim.AdamW(model.parameters(), lr=1e-3), torch.Generator().manual_seed(dist.get_rank())
for step in range(STEPS):
    batch = text[torch.randint(len(text) - CONTEXT, (8, 1), generator=draw) + torch.arange(CONTEXT + 1)].long()
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if dist.get_rank() == 0 and (step + 1) % 10 == 0:
        share = getattr(hc.of(model).last_step, "share", 1.0)  # one rank alone has no last step
        print(f"step {step + 1}: loss {loss:.3f}, {share:.3f} of the bytes of what is compressed", flush=True)
dist.destroy_process_group()
