"""Complex gradients as real ones: an element is two, its real and its imaginary part."""

from __future__ import annotations

import torch


def element_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype of the gradient of a parameter."""
    # torch 2.9 and newer let a gradient have another dtype than its parameter; None allows any.
    return getattr(parameter, "grad_dtype", None) or parameter.dtype


def gradient_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the dtype in which the gradient of a parameter travels: that of the parts of a complex one."""
    return element_dtype(parameter).to_real()


def gradient_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape in which it travels: of a complex one with a last dimension of 2."""
    return (*parameter.shape, 2) if parameter.is_complex() else tuple(parameter.shape)


def as_parameter(part: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return the part of a flat bucket that is a parameter's, as its gradient. Of a complex one it begins at an even
    element of its memory.
    """
    real = part.view(gradient_shape(parameter))
    return torch.view_as_complex(real) if parameter.is_complex() else real
