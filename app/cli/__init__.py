"""The command line: the module NAME contains `steno NAME`. It may import all other packages."""
