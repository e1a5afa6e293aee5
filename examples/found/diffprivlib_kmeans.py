"""A k-means of diffprivlib with statistics that have no noise: dpzv-audit audit mechanism diffprivlib_kmeans:subject"""

import numpy as np
from diffprivlib.models import KMeans

EPSILON, RECORDS = 1.0, 100


class Fit:
    """Two clusters of numbers between 0 and 1: 0.2 but for `far` of them, and for the first in the first world, at 0.8.

    What is released are the centres and, where it is watched, the inertia: the sum of squared distances from them. The
    score is what the inertia is beside what it would be in the other world, and without it the largest centre.
    """

    def __init__(self, inertia, far=0):
        self.inertia, self.far = inertia, far

    def run(self, world, rng):
        """Fit and return the score."""
        numbers = np.full((RECORDS, 1), 0.2)
        numbers[RECORDS - self.far :] = 0.8
        if world:
            numbers[0] = 0.8
        model = KMeans(n_clusters=2, epsilon=EPSILON, bounds=(0.0, 1.0), random_state=int(rng.integers(2**31)))
        model.fit(numbers)
        if not self.inertia:
            return float(model.cluster_centers_.max())
        return float(abs(model.inertia_ - RECORDS * np.min((0.2 - model.cluster_centers_) ** 2)))

    def claimed(self, delta):
        """Return the epsilon that was asked for."""
        return EPSILON


def subject():
    """The fitted model with its inertia."""
    return Fit(inertia=True)


def empty_cluster():
    """The centres alone, one of which has no records in the other world."""
    return Fit(inertia=False)


def full_clusters():
    """The centres alone, which have half of the records each."""
    return Fit(inertia=False, far=RECORDS // 2)
