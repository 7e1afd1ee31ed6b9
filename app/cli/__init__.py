"""Commands that a person starts: serve, doctor, demo, replay, and the others of `steno`. May use all other rooms."""
