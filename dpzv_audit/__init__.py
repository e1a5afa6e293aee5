"""Privacy auditing and attack evaluation for vertical federated learning; users import from here alone."""
