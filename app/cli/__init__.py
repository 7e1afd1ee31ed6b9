"""The command line: `steno NAME` is in the module NAME. May use all other packages."""
