"""Summaries: when one is due and of what, what is asked for, what is accepted, and the generator that does it in
order."""
