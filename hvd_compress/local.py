"""Several steps between exchanges, for plain training loops: `from hvd_compress.local import LocalSteps`.

hvd.init()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
local = LocalSteps(optimizer, model, every=8)    # and the loop as for one process
"""

from hvd_compress.frontends.local.outer import Outer, averaging, diloco, muloco
from hvd_compress.frontends.local.steps import LocalSteps

__all__ = ["LocalSteps", "Outer", "averaging", "diloco", "muloco"]
