"""Attacks on gradients."""
