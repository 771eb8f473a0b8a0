"""How good and how fast the searches are, on the testbeds of the paper."""
