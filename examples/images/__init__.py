"""The parts of the examples that are the same with Horovod and with DDP: data, network, loop, command line, report."""
