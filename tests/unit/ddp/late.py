"""A program, as two processes: rank 1 takes two steps of a job, and rank 0 a third."""

import os

import torch.distributed as dist

from tests.unit.ddp.training import compressed, loss_of, make_model

master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # of the parent, which is rank 0
until_it_ends, held = os.pipe()
rank = 0 if os.fork() else 1
store = master if rank == 0 else dist.TCPStore("127.0.0.1", master.port)
if rank == 1:
    os.close(held)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
model = compressed(make_model(), "star")
for step in range(2):
    loss_of(model, rank, step).backward()
if rank == 1:
    os.read(until_it_ends, 1)
    os._exit(0)
loss_of(model, rank, 2).backward()
