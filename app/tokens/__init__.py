"""Estimate of a prompt's tokens, calibration by the provider's counts, and costs."""
