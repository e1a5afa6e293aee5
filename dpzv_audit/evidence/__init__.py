"""Theory and games to evidence, evidence to a verdict; and the results of the commands that train and play."""
