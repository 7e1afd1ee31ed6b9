"""Memory, threads and tasks of a process, within bounds. This room knows nothing of what they hold or do."""
