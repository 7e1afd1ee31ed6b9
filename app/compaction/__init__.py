"""Drives compaction: the summariser, the lease, recent failures, what this process remembers.

Knows the store and the providers, and no wire format.
"""
