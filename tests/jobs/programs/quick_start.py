"""Import this before torch.optim is used: half of a short job's time would go into torch's compiler.

Optimizers import it only to switch it off for themselves (torch/_compile.py), which here is done without it.
"""

import sys
import types

compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda: None
sys.modules["torch._dynamo"] = compiler
