"""Import this before torch: most of a short job's time would go into what it does not use.

Optimizers import torch's compiler only to switch it off for themselves (torch/_compile.py), which here is done without
it. And torch itself imports what its operators do to tensors on the device "meta".
"""

import sys
import types

compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda: None
sys.modules["torch._dynamo"] = compiler
sys.modules["torch._meta_registrations"] = types.ModuleType("torch._meta_registrations")
