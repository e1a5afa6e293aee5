"""What every command shares: output, options, and the run of a command as data."""
