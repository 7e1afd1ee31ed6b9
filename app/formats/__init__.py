"""Provider JSON to core messages and back, and the byte-level codecs of the wire."""
