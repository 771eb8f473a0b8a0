"""The compiled kernels, on torch tensors: the only room that imports the compiled module.

All tensors are contiguous, one-dimensional, on the CPU or a GPU and of fp32, fp16 or bf16, but for the int32 indices
and the uint8 bits; none has more than 2^31 - 1 elements. Autograd sees nothing of what is written here. The GIL is
released while a kernel runs. Results depend neither on the number of threads (HVD_COMPRESS_NUM_THREADS, or else as many
as torch uses) nor on which vector instructions the machine has. Scratch memory is kept from call to call, for each
thread.

"Corrected" is the error-fed gradient, residual + grad: added in fp32 as torch.add does, rounded once to the residual's
dtype, to nearest even. The residual is fp32 or of the gradient's dtype; `out` receives what the kernel leaves of it, in
the residual's dtype. It is the residual itself by default, may also be `grad`, and else overlaps neither of the two.

A RuntimeError says that another thread wrote to an input during the call; the results are not to be used then. The
other errors are raised by every function, before anything is written.

Raises:
    ConfigError: an argument of a wrong dtype, shape, layout, device or size, or overlapping another; or the compiled
        module is missing.
    UnsupportedError: a CUDA tensor where the CUDA kernels were not built or cannot run.
    MismatchError: a ConfigError of indices out of range, or lengths that do not match. Of CUDA tensors, bad indices
        are left out, and raised by check_pending(): only threshold_select, threshold_accumulate, block_encode and
        block_decode make the host wait.
"""

from __future__ import annotations

from hvd_compress.native.blocks import (
    BlockCodes,
    BlockFormat,
    RandomKey,
    block_quantize,
    block_sum,
    block_sum_quantize,
)
from hvd_compress.native.checks import MAX_NUMEL
from hvd_compress.native.coded import block_decode, block_encode
from hvd_compress.native.curve import GainCurve, gain_curve
from hvd_compress.native.elias_fano import EliasFano, elias_fano_decode, elias_fano_encode
from hvd_compress.native.faults import about, check_pending, forget_pending
from hvd_compress.native.feedback import accumulate
from hvd_compress.native.module import FLOATS, SIMD_LEVELS, has_kernels, num_threads, set_simd_level, simd_levels
from hvd_compress.native.quantize import quantize_accumulate, quantize_add
from hvd_compress.native.scaling import scale
from hvd_compress.native.scatter import gather, scatter_add, scatter_lists, scatter_set, take
from hvd_compress.native.selection import (
    MSTOPK_ROUNDS,
    Momentum,
    mstopk,
    mstopk_accumulate,
    threshold_accumulate,
    threshold_select,
    topk,
    topk_accumulate,
)
from hvd_compress.native.sign import sign_accumulate, sign_accumulate_kept, sign_add

__all__ = [
    "FLOATS",
    "MAX_NUMEL",
    "MSTOPK_ROUNDS",
    "SIMD_LEVELS",
    "BlockCodes",
    "BlockFormat",
    "EliasFano",
    "GainCurve",
    "Momentum",
    "RandomKey",
    "about",
    "accumulate",
    "block_decode",
    "block_encode",
    "block_quantize",
    "block_sum",
    "block_sum_quantize",
    "check_pending",
    "elias_fano_decode",
    "elias_fano_encode",
    "forget_pending",
    "gain_curve",
    "gather",
    "has_kernels",
    "mstopk",
    "mstopk_accumulate",
    "num_threads",
    "quantize_accumulate",
    "quantize_add",
    "scale",
    "scatter_add",
    "scatter_lists",
    "scatter_set",
    "set_simd_level",
    "sign_accumulate",
    "sign_accumulate_kept",
    "sign_add",
    "simd_levels",
    "take",
    "threshold_accumulate",
    "threshold_select",
    "topk",
    "topk_accumulate",
]
