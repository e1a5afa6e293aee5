"""The shared part of all attacks: settings, knowledge, specs, runs, controls, metrics and intervals."""
