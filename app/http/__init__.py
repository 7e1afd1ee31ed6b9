"""The edge: HTTP in and out, as far as libraries were measured to cost a multiple. It knows no conversation."""
