"""How do the bytes move? Each engine is imported from its own module, since importing MPI or Horovod starts them."""
