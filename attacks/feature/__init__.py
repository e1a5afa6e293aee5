"""Attacks on features."""
