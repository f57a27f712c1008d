"""Measurements of the parts, printed by ``vrh bench``."""
