"""Cost of a prompt: the formula, the rules of each family of models, and the line to the provider's own count."""
