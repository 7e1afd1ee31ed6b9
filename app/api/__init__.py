"""HTTP: the intercepted chat route, the passthrough, REST over what is stored, and health."""
