"""Attacks on labels."""
