"""How much a prompt may take, when that is too much, and what a refusal says about it."""
