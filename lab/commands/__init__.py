"""Commands of the lab: demo, replay and bench."""
