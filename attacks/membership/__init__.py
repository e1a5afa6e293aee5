"""Attacks on membership."""
