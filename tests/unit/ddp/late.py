"""A program: rank 1 takes two steps of a job, and rank 0 a third."""

import sys

import torch.distributed as dist

import hvd_compress.ddp as hc
from tests.unit.ddp.training import compressed, loss_of, make_model

dist.init_process_group("gloo")
rank = dist.get_rank()
model = compressed(make_model(), hc.Compression.topk(0.1, "star"))
for step in range(2):
    loss_of(model, rank, step).backward()
if rank == 1:
    sys.stdin.read()  # until the test has seen enough
else:
    loss_of(model, rank, 2).backward()
