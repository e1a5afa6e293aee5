"""Lower bounds on epsilon from scores; needs numpy and scipy.special, and loads nothing heavier."""
