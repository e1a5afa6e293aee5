"""What tests of accounting ask of a release."""

from dpzv_audit.accounting import upper_bounds


def row(made, adversary, relation, **options):
    """The bounds of every accountant on one cell of the table, at a delta of 1e-5."""
    return upper_bounds(made, **{"delta": 1e-5, "adversaries": [adversary], "neighbours": [relation], **options})
