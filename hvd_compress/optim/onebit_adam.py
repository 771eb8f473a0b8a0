"""1-bit Adam: Adam whose variance is frozen after a warm-up, so that momentum can be compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from hvd_compress.checks import check_flag, check_number, check_whole
from hvd_compress.compression import Compression
from hvd_compress.compression.part import says_by
from hvd_compress.errors import ConfigError
from hvd_compress.optim.checks import check_from_zero, dense_gradient
from hvd_compress.request.request import Request


class OneBitAdam(torch.optim.Optimizer):
    """1-bit Adam (Tang et al. 2021, Algorithm 1): the optimizer; what it says of compression is in compression().

    In the first `warmup_steps` steps of a parameter it is Adam, with weight decay as AdamW has it:

        v = beta2 * v + (1 - beta2) * g^2
        m = beta1 * m + (1 - beta1) * g
        p = p - lr * (weight_decay * p + m' / (sqrt(v') + eps))

    where m' = m / (1 - beta1^t) and v' = v / (1 - beta2^t). From then on v and its correction stay as they are, and so
    the update is linear in m: which may be compressed with error feedback. Elements whose v is 0, as they never had a
    gradient in the warm-up, stay where they are then, but for weight decay: m / eps would be a very long step.

    The paper has no correction of the bias (`bias_correction=False`). With it the warm-up is that of AdamW of torch.
    A warm-up of 15 to 25 % of all steps is the paper's; v must have settled.

    State of a parameter: "step", "exp_avg" (m) and "exp_avg_sq" (v), of its dtype, as Adam of torch has it.
    """

    _given: tuple[float, int] | None = None
    """beta1 and warm-up that compression() has passed on."""

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        warmup_steps: int | None = None,
        bias_correction: bool = True,
    ) -> None:
        """Make it over parameters or groups of them; a group may have settings of its own.

        Args:
            lr: learning rate.
            betas: of momentum and variance, from 0 on, below 1. beta1 is one for all groups.
            eps: added to the square root of the variance.
            weight_decay: decoupled; lr * weight_decay of a parameter is taken from it in each step.
            warmup_steps: after so many steps the variance is frozen; one number for all groups. It must be given, here
                or with each group, as Horovod's own optimizer does.
            bias_correction: whether m and v are divided by what they lack after few steps.

        Raises:
            ConfigError: a value is out of range.
        """
        defaults = {
            **{"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay},
            **{"warmup_steps": warmup_steps, "bias_correction": bias_correction},
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            _check(group)

    @says_by("optimizer.compression")
    def compression(self, *, margin_steps: int = 0, **options: Any) -> Request:
        """Return the compression that goes with this optimizer; call it before either is used.

        Gradients travel dense in the warm-up, and the momentum in a few bits after it.

        Args:
            margin_steps: gradients travel dense for so many steps longer. A torch.amp.GradScaler skips steps that are
                not finite: the exchange counts them, and this optimizer does not. Dense gradients after the variance
                was frozen do no harm; a variance of what is compressed does.
            options: inner, of Compression.momentum().

        Raises:
            ConfigError: groups have several beta1 or warm-ups; a value is out of range.
        """
        found = sorted({_shared(group) for group in self.param_groups})
        if len(found) > 1:
            raise ConfigError(
                f"groups have several (beta1, warmup_steps), and a momentum that is compressed one: {found}"
            )
        check_whole("margin_steps", margin_steps, 0)
        beta, warmup_steps = found[0]
        request = Compression.momentum(beta, warmup_steps + margin_steps, **options)
        self._given = beta, warmup_steps
        return request

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what state_dict() gave, settings included.

        Raises:
            ConfigError: beta1 or the warm-up is another one than that of compression(); nothing has changed then.
        """
        self._check_given(state_dict["param_groups"])
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: computes the loss anew, and its gradients.

        Returns:
            What the closure does.

        Raises:
            ConfigError: beta1 or the warm-up has changed since compression(): a scheduler such as OneCycleLR cycles
                momentum unless it is told not to.
            UnsupportedError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_given(self.param_groups)
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = dense_gradient(parameter, "OneBitAdam")
                if gradient is not None:
                    self._move(parameter, gradient, group)
        return loss

    def _move(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        state, (beta1, beta2), warmup_steps = self.state[parameter], group["betas"], group["warmup_steps"]
        if not state:
            state["step"] = torch.zeros((), device="cpu")
            state["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state["step"] += 1
        step, momentum, variance = int(state["step"]), state["exp_avg"], state["exp_avg_sq"]
        frozen = step > warmup_steps
        momentum.mul_(beta1).add_(gradient, alpha=1.0 - beta1)
        if not frozen:
            variance.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        corrected1 = 1.0 - beta1**step if group["bias_correction"] else 1.0
        corrected2 = 1.0 - beta2 ** min(step, warmup_steps) if group["bias_correction"] else 1.0
        update = momentum / (variance.sqrt().div_(corrected2**0.5).add_(group["eps"]))
        if frozen:
            update.masked_fill_(variance == 0, 0.0)
        parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-float(group["lr"]) / corrected1)

    def _check_given(self, groups: Iterable[Mapping[str, Any]]) -> None:
        for found in map(_shared, groups):
            if self._given is not None and found != self._given:
                raise ConfigError(
                    f"(beta1, warmup_steps) is {found}, and compression() has passed on {self._given}: momentum is "
                    "compressed by the latter. Make a new optimizer to change them, and have schedulers leave momentum "
                    "alone (cycle_momentum=False)"
                )


def _shared(group: Mapping[str, Any]) -> tuple[float, int]:
    return float(group["betas"][0]), int(group["warmup_steps"])


def _check(group: Mapping[str, Any]) -> None:
    for name in ("lr", "eps", "weight_decay"):
        check_from_zero(name, group[name])
    if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != 2:
        raise ConfigError(f"betas = {group['betas']!r} are not two numbers")
    for number, beta in enumerate(group["betas"], 1):
        check_number(f"beta{number}", beta, 0, below=1)
    check_whole("warmup_steps", group["warmup_steps"], 1, hint="the variance comes from the warm-up")
    check_flag("bias_correction", group["bias_correction"])
