"""What may be done to a view, one stage each, and the ladder that goes through them."""
