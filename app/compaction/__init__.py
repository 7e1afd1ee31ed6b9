"""Drives core's compaction: the summariser, the lease, what failed of late, what this process remembers.

Knows the store and the providers, and no wire format.
"""
