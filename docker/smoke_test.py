"""Do the parts of this image work together? One compressed training step on all ranks, and the same result on each."""

from __future__ import annotations

import torch

import hvd_compress.torch as hvd


def main() -> None:
    hvd.init()
    torch.manual_seed(hvd.rank())  # each rank its own start and its own data
    model = torch.nn.Linear(1000, 10)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.topk(ratio=0.01),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    before = model.weight.detach().clone()
    model(torch.randn(8, 1000)).square().mean().backward()
    optimizer.step()

    changed = int((model.weight != before).sum())
    everywhere = hvd.allgather(model.weight.detach()[None])
    if not (everywhere == everywhere[0]).all():
        raise SystemExit(f"rank {hvd.rank()}: the ranks disagree after one step")
    if not 0 < changed <= 100 * hvd.size():
        raise SystemExit(f"rank {hvd.rank()}: {changed} weights changed, expected 1 to {100 * hvd.size()}")
    if hvd.rank() == 0:
        print(f"smoke test: {hvd.size()} ranks agree, {changed} of {before.numel()} weights changed")


if __name__ == "__main__":
    main()
