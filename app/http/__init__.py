"""HTTP server and client code, written here because libraries were several times slower."""
