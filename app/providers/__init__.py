"""Every upstream, and what is known of each: how it is reached, its windows, how it counts, what its calls took."""
