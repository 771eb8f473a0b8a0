"""What was done when: a trace of single steps for chrome://tracing and Perfetto."""
