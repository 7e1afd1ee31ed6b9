"""HTTP server and client. Much of the code replaces library code that was several times slower."""
