"""How kept elements lie on the wire: values rounded or not, indices as they are or coded without loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from hvd_compress import native
from hvd_compress.checks import check_choice
from hvd_compress.compressors.blocks import checked_scales
from hvd_compress.errors import PayloadError, received
from hvd_compress.payload import Payload

VALUES = ("fp32", "bf16", "int8")
INDEX_CODINGS = ("none", "delta")
BLOCKS = native.BlockFormat(8, 64)
"""Of values="int8"."""


@dataclass(frozen=True)
class SparseCoding:
    """The payload of k kept elements out of numel.

    | setting               | tensors of the payload                  | bytes an element                  |
    | values="fp32"         | `values` (k,) fp32                      | 4                                 |
    | values="bf16"         | `values` (k,) bf16                      | 2                                 |
    | values="int8"         | `codes` (k,) uint8, `scales` bf16       | 1.03                              |
    | index_coding="none"   | `indices` (k,) int32                    | 4                                 |
    | index_coding="delta"  | `index_words` int32                     | 1.07 where one of a hundred is kept |

    "int8" are the codes of BlockQuantizer(8, 64). "delta" stores differences: of the high bits of indices in unary, and
    the low bits as they are (Elias 1974; Fano 1971), so its length follows from k and numel alone (native.EliasFano).
    What rounding loses is returned, and is exact: rounded + lost = value. A bf16 value beyond 3.39e38 is infinite.
    """

    values: str = "fp32"
    index_coding: str = "none"

    def __post_init__(self) -> None:
        check_choice("values", self.values, VALUES)
        check_choice("index_coding", self.index_coding, INDEX_CODINGS)

    def nbytes(self, numel: int, k: int) -> int:
        """Return the bytes of k elements out of numel."""
        return self.index_bytes(numel, k) + self.value_bytes(k)

    def most_bytes(self, numel: int, k: int) -> int:
        """Return the most bytes of k elements or fewer: a word more, as both parts of a code end with a whole one."""
        return self.nbytes(numel, k) + (4 if self.index_coding == "delta" else 0)

    def index_bytes(self, numel: int, k: int) -> int:
        """Return the bytes of k indices."""
        return native.EliasFano(numel, k).nbytes if self.index_coding == "delta" else 4 * k

    def value_bytes(self, k: int) -> int:
        """Return the bytes of k values."""
        return k + 2 * BLOCKS.blocks(k) if self.values == "int8" else (4 if self.values == "fp32" else 2) * k

    def encode(self, indices: torch.Tensor, values: torch.Tensor, numel: int) -> tuple[Payload, torch.Tensor | None]:
        """Return the payload, and what rounding loses of each value, (k,) fp32, or None where it loses nothing."""
        rounded, lost = self._encode_values(values.float())
        return Payload({**self.encode_indices(indices, numel), **rounded}, numel), lost

    def decode(self, payload: Payload) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the indices (k,) int32 and the values (k,) fp32 of a payload.

        Raises:
            PayloadError: lengths do not fit each other, or indices do not ascend within 0..numel-1; indices that are
                not coded are left to those who use them.
        """
        values = self._decode_values(payload)
        return self.decode_indices(payload, values.numel()), values

    def encode_indices(self, indices: torch.Tensor, numel: int) -> Mapping[str, torch.Tensor]:
        """Return the tensors of a payload that stand for the indices."""
        if self.index_coding == "delta":
            return {"index_words": native.elias_fano_encode(indices, numel)}
        return {"indices": indices}

    def index_template(self, numel: int, k: int) -> Mapping[str, torch.Tensor]:
        """Return tensors of the names, dtypes and lengths that encode_indices() gives, on the CPU."""
        coded = self.index_coding == "delta"
        length = native.EliasFano(numel, k).words if coded else k
        return {"index_words" if coded else "indices": torch.zeros(length, dtype=torch.int32, device="cpu")}

    def decode_indices(self, payload: Payload, k: int) -> torch.Tensor:
        """Return the k indices of a payload. Raises PayloadError as decode()."""
        if self.index_coding == "none":
            return payload["indices"]
        if k > payload.numel:
            raise PayloadError(f"{k} values for {payload.numel} elements")
        with received():
            return native.elias_fano_decode(payload["index_words"], payload.numel, k)

    def _encode_values(self, values: torch.Tensor) -> tuple[Mapping[str, torch.Tensor], torch.Tensor | None]:
        if self.values == "fp32":
            return {"values": values}, None
        if self.values == "bf16":
            rounded = values.bfloat16()
            return {"values": rounded}, values - rounded.float()
        lost = torch.zeros_like(values)
        found = native.block_quantize(values, lost, BLOCKS)
        return {"codes": found.codes[: values.numel()], "scales": found.units}, lost

    def _decode_values(self, payload: Payload) -> torch.Tensor:
        if self.values != "int8":
            return payload["values"].float()
        codes, scales = payload["codes"], payload["scales"]
        k = codes.numel()
        if scales.numel() != BLOCKS.blocks(k):
            raise PayloadError(f"{scales.numel()} scales for {k} values, expected {BLOCKS.blocks(k)}")
        padded = codes.new_zeros(BLOCKS.code_bytes(k))
        padded[:k] = codes
        values = torch.empty(k, dtype=torch.float32, device=codes.device)
        native.block_sum([native.BlockCodes(padded, checked_scales(scales))], values, BLOCKS, 1.0)
        return values
