"""Decisions of Steno, as pure functions: no clock, environment, network, database, logging or asyncio."""
