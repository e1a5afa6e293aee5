"""Subjects of an audit made of what other libraries train: one module for each library, imported by name."""
