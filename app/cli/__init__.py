"""The command line. `main.COMMANDS` lists the module of each command. This package may import all other packages."""
