"""What Steno decides, as pure functions: no clock, environment, network, database, logging or asyncio."""
