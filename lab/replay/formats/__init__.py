"""The formats that conversations are recorded, played and judged in."""
