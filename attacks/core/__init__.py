"""What all attacks share: their contract, how they are mounted, controls, metrics and intervals."""
