"""Compaction: views, summaries, masks, quotations, and the decision about each payload."""
