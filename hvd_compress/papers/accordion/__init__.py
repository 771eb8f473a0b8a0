"""Much is sent in critical regimes of a training, little in the rest (Agarwal et al., Accordion)."""
