"""A torch optimizer that reduces gradients before it steps: the front end of Horovod's users, without Horovod."""
