"""A reference for gathers in few bits: FSDP gathers everything, and each rank rounds all of it by itself."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist

from hvd_compress.compressors.encodings import InBlocks
from hvd_compress.frontends.fsdp.gathers import Gathers
from hvd_compress.native import block_quantize, block_sum

FEWEST = 4096


def install(model: Any, form: Gathers) -> Any:
    """Have FSDP gather the parameters of a model as if by `form`, in whole numbers of few bits; return the model."""
    for module in model.modules():
        if hasattr(module, "set_custom_all_gather"):
            (group,) = module._get_fsdp_state()._fsdp_param_groups
            module.set_custom_all_gather(Rounded(group, form))
    return model


class Rounded:
    """FSDP's own all-gather, and then rounding."""

    def __init__(self, group: Any, form: Gathers) -> None:
        self._group, self._form = group, form
        self._last: torch.Tensor | None = None

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    @torch.no_grad()
    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool) -> None:
        dist.all_gather_into_tensor(output_tensor, input_tensor, group)
        if group.size() != self._group.mesh_info.shard_process_group.size():
            return
        if not self._form.of_differences:
            for shard in output_tensor.view(group.size(), -1):
                self._round(shard, torch.zeros_like(shard))
            return
        is_backward = torch._C._current_graph_task_id() != -1
        if self._last is not None and is_backward:
            output_tensor.copy_(self._last)
        elif self._last is not None:
            for shard, last in zip(*(each.view(group.size(), -1) for each in (output_tensor, self._last)), strict=True):
                self._round(shard, last)
        self._last = output_tensor.clone()

    def _round(self, shard: torch.Tensor, last: torch.Tensor) -> None:
        """Replace the difference of a rank's shard from `last` by what is left of it, but for small parameters."""
        sizes = [math.prod(each.padded_sharded_param_size) for each in self._group.fsdp_params]
        owners = zip(self._group.fsdp_params, *(torch.split(each, sizes) for each in (shard, last)), strict=True)
        few = [(own, before) for param, own, before in owners if is_few(param.sharded_param)]
        if not few:
            return
        own, before = (torch.cat(parts) for parts in zip(*few, strict=True))
        found, encoding = torch.empty_like(own), self._form.encoding
        if isinstance(encoding, InBlocks):
            block_sum([block_quantize(own - before, None, encoding.format)], found, encoding.format, 1.0)
        else:
            found.copy_((own - before).bfloat16())
        for (part, _), value in zip(few, torch.split(before + found, [each.numel() for each, _ in few]), strict=True):
            part.copy_(value)


def is_few(parameter: torch.Tensor) -> bool:
    return parameter.dim() > 1 and parameter.numel() >= FEWEST
