"""Privacy claims as a file, the evidence for and against each, and the verdict on all of them together."""
