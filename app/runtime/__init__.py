"""Memory, threads and tasks of a process, within bounds, whatever they hold or do."""
