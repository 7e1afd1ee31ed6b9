"""What a person starts: serve, doctor, demo, replay, and the other commands of `steno`. Knows everything below."""
