"""Parts of parity_fla.py, which says what they are for."""
