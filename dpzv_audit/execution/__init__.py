"""Carries tasks out, here or in worker processes: chunks of an audit, claims of a file and cells of a matrix."""
