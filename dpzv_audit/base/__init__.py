"""The ground floor: errors, files, seeds, limits, printed numbers, and where work is done. It imports nothing of ours."""
