"""What a prompt costs: the formula, the rules of each family of models, and the line to the provider's own count."""
