"""HTTP in and out, where libraries were measured to be several times slower. It knows no conversation."""
