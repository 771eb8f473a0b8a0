"""The compiled module: addresses, dtype codes and sizes, all unchecked. Only hvd_compress/native/ imports it.

Functions that take indices return the position of the first one out of range, or -1; they have written nothing then.
All of them raise RuntimeError for a status that hvd_compress/native/ should have made impossible, or that says that
an input changed during the call.
"""

import numpy as np
import numpy.typing as npt

def set_num_threads(threads: int, /) -> None: ...
def best_simd_level() -> int: ...
def simd_level_of_kernels() -> int: ...
def num_threads() -> int: ...
def slow_selections() -> int: ...
def set_simd_level(level: int, /) -> bool: ...
def accumulate(grad: int, grad_dtype: int, residual: int, out: int, out_dtype: int, n: int, /) -> bool: ...
def scale(x: int, dtype: int, n: int, factor: float, /) -> bool: ...
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
def sign_accumulate_kept(
    grad: int,
    grad_dtype: int,
    kept: int,
    kept_scale: int,
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
def scatter_lists(
    lists: list[tuple[int, int, int]],
    values_dtype: int,
    out: int,
    out_dtype: int,
    n: int,
    scale: float,
    clear: bool,
    /,
) -> tuple[int, int]: ...
def threshold_workspace_bytes(n: int, /) -> int: ...
def threshold_count(x: int, dtype: int, n: int, tau: float, workspace: int, workspace_bytes: int, /) -> int: ...
def threshold_select(
    x: int,
    dtype: int,
    n: int,
    tau: float,
    count: int,
    indices: int,
    values: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...
def threshold_accumulate(
    grad: int,
    grad_dtype: int,
    residual: int,
    factor: float,
    velocity: int,
    velocity_out: int,
    out: int,
    n: int,
    tau: float,
    workspace: int,
    workspace_bytes: int,
    /,
) -> int: ...
def threshold_take(
    x: int,
    velocity_out: int,
    n: int,
    tau: float,
    count: int,
    indices: int,
    values: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...

CURVE_BINS: int

def curve_workspace_bytes(n: int, /) -> int: ...
def magnitude_curve(
    x: int, dtype: int, n: int, counts: int, shares: int, workspace: int, workspace_bytes: int, /
) -> None: ...
def mstopk_workspace_bytes(n: int, k: int, /) -> int: ...
def mstopk(
    x: int,
    dtype: int,
    n: int,
    k: int,
    rounds: int,
    indices: int,
    values: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...
def mstopk_accumulate(
    grad: int,
    grad_dtype: int,
    residual: int,
    out: int,
    out_dtype: int,
    n: int,
    k: int,
    rounds: int,
    indices: int,
    values: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...
def quantize_workspace_bytes(n: int, /) -> int: ...
def quantize_accumulate(
    grad: int,
    grad_dtype: int,
    residual: int,
    out: int,
    out_dtype: int,
    n: int,
    bits: int,
    kind: int,
    seed: int,
    step: int,
    bucket: int,
    packed: int,
    norm: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> None: ...
def quantize_add(packed: int, norm: int, out: int, out_dtype: int, n: int, bits: int, weight: float, /) -> None: ...
def block_quantize(
    grad: int,
    grad_dtype: int,
    residual: int,
    out: int,
    n: int,
    most: int,
    block: int,
    fit: int,
    random: bool,
    seed: int,
    step: int,
    bucket: int,
    codes: int,
    units: int,
    /,
) -> None: ...
def block_sum(
    sources: list[tuple[int, int]], n: int, most: int, block: int, weight: float, out: int, out_dtype: int, /
) -> bool: ...
def block_sum_quantize(
    own: int,
    own_dtype: int,
    others: list[tuple[int, int]],
    place: int,
    rest: int,
    n: int,
    most: int,
    block: int,
    fit: int,
    random: bool,
    seed: int,
    step: int,
    bucket: int,
    codes: int,
    units: int,
    /,
) -> None: ...
def block_encode(codes: int, n: int, most: int, coded: int, /) -> int: ...
def block_decode(coded: int, bytes: int, n: int, most: int, codes: int, /) -> bool: ...
def coded_tables(most: int, /) -> tuple[bytes, bytes, bytes]: ...
def elias_fano_workspace_bytes(n: int, count: int, /) -> int: ...
def elias_fano_encode(indices: int, count: int, n: int, words: int, /) -> int: ...
def elias_fano_decode(words: int, count: int, n: int, indices: int, workspace: int, workspace_bytes: int, /) -> int: ...

class PlannerProblem:
    def __init__(
        self,
        backward: list[int],
        size: list[int],
        options: list[list[int]],
        lane: list[int],
        prices: list[list[int]],
        tracks: int,
        /,
    ) -> None: ...
    def undominated(self, size: int, among: list[int], /) -> list[int]: ...
    def cheapest(self, size: int, among: list[int], /) -> list[int]: ...
    def times(self, size: int, /) -> list[int]: ...
    def ends(self, strategies: list[list[int]], /) -> list[int]: ...
    def spans(self, strategy: list[int], /) -> list[tuple[int, int, int, int, int]]: ...
    def select(self, numel: list[int], among: list[int], first: int, /) -> tuple[list[int], int, int, bool]: ...
    def offload(self, strategy: list[int], twin: list[int], most: int, /) -> tuple[list[int], int, int, bool]: ...
    def improve(self, strategy: list[int], among: list[int], most: int, /) -> tuple[list[int], int, int, bool]: ...
    def brute_force(self, among: list[int], most: int, /) -> tuple[list[int], int, int, bool]: ...

_Array = npt.NDArray[np.int64]
_Lists = tuple[_Array, list[int]]
_Lane = tuple[_Lists, _Lists, _Array, _Lists, _Lists, _Lists, _Lists, _Lists, _Lists]
_Exchange = tuple[_Lane, _Lane, _Array, _Array, int, int, int, int, tuple[int, int, int, int, int, int, int, int]]

class EmbeddingLookahead:
    def __init__(
        self,
        members: int,
        member: int,
        owners: list[int],
        trainers: list[int],
        cache_rows: int,
        lookahead: int,
        replicated: bool,
        delayed: bool,
        compressed: bool,
        /,
    ) -> None: ...
    def add(self, rows: int, offsets: list[int], limit: int, /) -> int: ...
    def fill(self) -> int: ...
    def plan(self, tells: bool, /) -> tuple[_Exchange, tuple[_Array, ...] | None]: ...
    def kept(self) -> tuple[_Lists, _Lists]: ...

def embedding_initial_values(
    rows: int, count: int, offsets: int, bounds: int, tables: int, dim: int, seed: int, values: int, stride: int, /
) -> None: ...

class EmbeddingUniqueRows:
    def __init__(self) -> None: ...
    def collect(self, ids: int, count: int, rows: int, positions: int, /) -> int: ...
    def find(self, ids: int, count: int, rows: int, positions: int, /) -> int: ...

def decode_attention_workspace_bytes(
    key_rows: int, value_rows: int, scores: int, outputs: int, head_dim: int, tokens: int, /
) -> int: ...
def copy_tokens(
    data: int,
    rows: int,
    heads: int,
    sequence_stride: int,
    head_stride: int,
    bytes: int,
    index: int,
    count: int,
    store: int,
    stride: int,
    /,
) -> int: ...
def decode_attention(
    index: int,
    scores: int,
    outputs: int,
    dtype: int,
    query: int,
    queries: int,
    heads: int,
    sequence_stride: int,
    head_stride: int,
    keys: int,
    key_rows: int,
    key_stride: int,
    head_dim: int,
    values: int,
    value_rows: int,
    value_stride: int,
    value_dim: int,
    mask: int,
    mask_stride: int,
    tokens: int,
    scaling: float,
    out: int,
    workspace: int,
    workspace_bytes: int,
    /,
) -> int: ...

class Links:
    def __init__(self, sockets: list[int], /) -> None: ...
    def swap(
        self,
        sent: list[tuple[int, int, bool]],
        received: list[tuple[int, int, bool]],
        order: list[int],
        exactly: bool,
        limit_ms: int,
        /,
    ) -> tuple[int, int, int, int, int, list[int]]: ...
    def abort(self) -> None: ...
    def forget(self) -> None: ...
