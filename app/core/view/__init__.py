"""Views, which are sent instead of the history: summaries, masks, pins, and the check that nothing is lost."""
