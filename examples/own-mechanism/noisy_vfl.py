"""A small vertical federation that somebody built: one party holds labels, the other features and a linear model.

Each round the label party answers with the mean of clipped residuals times features, and Gaussian noise; the feature
party takes a gradient step. What the feature party receives is the release. `NoisyFederation` states the audit: two
worlds that differ in one record's label, and a score that tells them apart as well as the feature party could.
"""

import numpy as np

RECORDS, FEATURES = 64, 8


class NoisyFederation:
    """A worst-case record, whose residual is clipped at +C in one world and at -C in the other, in every round.

    The divisor is fixed, so one replaced label moves a round's answer by 2C/D along the record's features, and
    `rounds` answers with noise of `noise_multiplier` times that are sqrt(rounds) / noise_multiplier-Gaussian DP.
    """

    def __init__(self, *, rounds=20, clip=1.0, noise_multiplier=20.0, noisy_rounds=None):
        self.rounds, self.clip = rounds, clip
        self.sigma = noise_multiplier * 2.0 * clip / RECORDS
        self.noisy_rounds = rounds if noisy_rounds is None else noisy_rounds
        generator = np.random.default_rng(0)
        features = generator.normal(size=(RECORDS, FEATURES))
        self.features = features / np.linalg.norm(features, axis=1, keepdims=True)
        self.labels = np.sign(self.features @ generator.normal(size=FEATURES))

    def run(self, world, rng):
        """Train once in a world and score what the feature party received; world 1 and 0 differ in record 0's label."""
        labels = self.labels.copy()
        labels[0] = 50.0 if world else -50.0  # far outside the clip, so that it counts in full in every round
        weights, score = np.zeros(FEATURES), 0.0
        for number in range(self.rounds):
            residuals = np.clip(labels - self.features @ weights, -self.clip, self.clip)
            answer = self.features.T @ residuals / RECORDS
            if number < self.noisy_rounds:
                answer = answer + rng.normal(0.0, self.sigma, FEATURES)
            # The feature party knows its weights; all that it does not know of the answer is record 0's label.
            others = np.clip(self.labels - self.features @ weights, -self.clip, self.clip)
            others[0] = 0.0
            score += float(self.features[0] @ (answer - self.features.T @ others / RECORDS))
            weights = weights + 0.5 * answer
        return score


def build():
    """The federation as it ships; sqrt(20)/20-Gaussian DP, epsilon 0.82 at delta 1e-5."""
    return NoisyFederation()


def forgot_the_noise():
    """The same with a bug: noise is added in the first round only."""
    return NoisyFederation(noisy_rounds=1)
