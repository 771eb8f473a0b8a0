"""The compiled module: addresses, dtype codes and sizes, all unchecked. Only hvd_compress/native.py imports it.

Functions that take indices return the position of the first one out of range, or -1; they have written nothing then.
All of them raise RuntimeError for a status that native.py should have made impossible.
"""

def accumulate(grad: int, grad_dtype: int, residual: int, out: int, out_dtype: int, n: int, /) -> bool: ...
def topk_workspace_bytes(n: int, k: int, /) -> int: ...
def topk(
    x: int, dtype: int, n: int, k: int, indices: int, values: int, workspace: int, workspace_bytes: int, /
) -> None: ...
def topk_accumulate(
    grad: int,
    grad_dtype: int,
    residual: int,
    out: int,
    out_dtype: int,
    n: int,
    k: int,
    indices: int,
    values: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...
def sign_workspace_bytes(n: int, /) -> int: ...
def sign_accumulate(
    grad: int,
    grad_dtype: int,
    residual: int,
    out: int,
    out_dtype: int,
    n: int,
    bits: int,
    scale: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...
def sign_add(bits: int, scale: int, out: int, out_dtype: int, n: int, weight: float, /) -> None: ...
def gather(x: int, dtype: int, n: int, indices: int, count: int, values: int, /) -> int: ...
def take(x: int, dtype: int, n: int, indices: int, count: int, values: int, /) -> int: ...
def scatter_add(
    indices: int, values: int, values_dtype: int, count: int, out: int, out_dtype: int, n: int, scale: float, /
) -> int: ...
def scatter_set(
    indices: int, values: int, values_dtype: int, count: int, out: int, out_dtype: int, n: int, scale: float, /
) -> int: ...
