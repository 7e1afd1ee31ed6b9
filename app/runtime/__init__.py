"""Bounded caches and maps, threads and tasks of a process."""
