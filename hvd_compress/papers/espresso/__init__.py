"""Which choice, before training? Options, their timeline, and the search for the best strategy (Espresso)."""
