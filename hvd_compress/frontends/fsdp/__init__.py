"""PyTorch FSDP2: gradients of sharded parameters, and of their replicas."""
