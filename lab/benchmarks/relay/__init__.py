"""Relays side by side: Steno, its peers, nginx and no relay at all, measured in one run on pinned cores."""
