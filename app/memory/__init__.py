"""Memory that a process keeps for a while, within bounds: histories, sightings, repeats. Knows nothing of what it
holds."""
