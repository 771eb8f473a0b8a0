"""One line each for what drives trainings: a file a library, which alone imports it."""
