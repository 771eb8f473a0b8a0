"""Would compression pay for this model on this network? A model in closed form (Agarwal et al., section 4.2.4)."""
