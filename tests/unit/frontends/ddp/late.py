"""A program, as two processes: rank 1 takes two steps of a job, and rank 0 a third.

late.py raises: rank 0's third backward pass ends with an error of the model's own, when some buckets have left; if the
end of rank 0 then comes to that of its objects, rank 1 takes its third step, so that the collective goes on.
"""

import os
import sys
import time

import torch
import torch.distributed as dist

from tests.unit.frontends.ddp.training import compressed, loss_of, make_model


class Object:
    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def __del__(self, write=os.write, sleep=time.sleep) -> None:
        write(self._pipe, b"go on")
        sleep(2)


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
    if os.read(until_it_ends, 5):
        loss_of(model, rank, 2).backward()
    os._exit(0)
if sys.argv[1:] == ["raises"]:
    torch.last_of_all = Object(held)  # modules are cleared when Python ends
    model.module[0].weight.register_hook(lambda _: 1 / 0)
loss_of(model, rank, 2).backward()
