"""Theory and games to evidence, evidence to a verdict: what every command that judges a claim rests on."""
