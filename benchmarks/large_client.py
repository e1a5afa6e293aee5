"""Cost of a round of DPZV whose client is a transformer: beside its own two forward passes, and by parts for plans.

A BERT of the given size with random weights stands for a pre-trained one: cost does not depend on weights. One client
holds runs of token ids, the server a small top model; noise and clipping are on, and the client moves its parameters in
place. Times are processor seconds of one thread, the least of a few turns of all that are compared: a round with each
kind of direction, and the two forward passes of the same batch alone. What a round takes beside them, directions drawn
and parameters moved, does not depend on the batch. Needs the extra `[text]`.

Run: OMP_NUM_THREADS=1 python benchmarks/large_client.py            BERT-base: 2 GB of memory, four minutes
     OMP_NUM_THREADS=1 python benchmarks/large_client.py --model minilm
     OMP_NUM_THREADS=1 python benchmarks/large_client.py --model minilm --memory
     OMP_NUM_THREADS=1 python benchmarks/run.py large               rows of the page of benchmarks, of MiniLM's size
"""

import argparse
from functools import partial

import torch
from measuring import least, tensors
from ratios import Row, milliseconds

from dpzv_audit.base.errors import InputError
from dpzv_audit.reproduce.memory import LiveBytes, peak_of_a_round, random_encoder, random_tokens
from mechanisms import METHODS
from mechanisms.core.context import RunContext

LENGTH = 32
SHAPES = {
    "bert": (12, 768, 12),
    "minilm": (6, 384, 12),
    "tiny": (2, 128, 2),
}
"""Layers, width and heads."""
PROMISED = {"rademacher": 2.5, "gaussian": 5.0, "sphere": 5.0}
"""A round takes at most so many times its own two forward passes of 8 records, by kind of direction."""
PROMISED_MEMORY = 1.3
"""The peak of a round is at most so many times the model and the activations of a forward pass."""


IN_PLACE = {"perturbation": "in-place", "momentum": 0.0}
STEPS = {
    "dpzv, in place": ("dpzv", IN_PLACE),
    "dpzv-sound, in place": ("dpzv-sound", IN_PLACE),
    "dpzv, on copies": ("dpzv", {"momentum": 0.0}),
    "zoo-vfl": ("zoo-vfl", {}),
    "cascaded": ("cascaded", {}),
    "czofo": ("czofo", {}),
    "vafl": ("vafl", {}),
    "split": ("split", {}),
}
"""Methods whose memory is compared, without momentum, by name."""


def encoder(name):
    """A folder with random weights of a shape, as a context."""
    layers, width, heads = SHAPES[name]
    shape = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return random_encoder({**shape, "intermediate_size": 4 * width})


def run_of(folder, batch, direction, device="cpu"):
    """A run of dpzv in place before its first round."""
    return method_run(folder, batch, "dpzv", IN_PLACE | {"direction": direction}, device)


def method_run(folder, batch, method, options, device="cpu"):
    """A run of a method before its first round."""
    spec = METHODS[method]
    config = spec.configure(batch_size=batch, client_model="transformer", transformer=folder, **options)
    data = tensors(random_tokens(2 * batch, LENGTH), device)
    return spec.start(data, config, RunContext(seed=0, device=device))


def two_forward_passes(run):
    """A function that evaluates the client's model on a batch of the run, twice."""
    fed = run.federation
    client = fed.clients[0]
    inputs = fed.data.features[0][: run.config.batch_size].unsqueeze(0)

    def passes():
        for _ in range(2):
            client.evaluator.forward(client.parameters, inputs)

    return passes


def compared(folder, batch, *, turns, device="cpu"):
    """Seconds of a round by kind of direction, and of the two forward passes; the last run."""
    runs = {kind: run_of(folder, batch, kind, device) for kind in PROMISED}
    passes = two_forward_passes(runs["sphere"])
    functions = [(run.step, 1) for run in runs.values()] + [(passes, 1)]
    least(functions, turns=1, device=device)
    *rounds, bare = least(functions, turns=turns, device=device)
    return dict(zip(runs, rounds, strict=True)), bare, runs["sphere"]


def peak_and_parts(make):
    """Bytes of the peak of a round, of the client's model, and of the activations of one forward pass."""
    run = make()
    parameters = run.federation.clients[0].parameters.flat.nbytes
    with LiveBytes() as live:
        two_forward_passes(run)()
    activations = live.peak
    del run
    return peak_of_a_round(make), parameters, activations


@torch.no_grad()
def rows(*, quick=False, device="cpu"):
    """A round in place of a client of MiniLM's size, over its own two forward passes, and its peak memory."""
    shape, batch = ("tiny", 2) if quick else ("minilm", 8 if device == "cpu" else 64)
    what = f"dpzv in place, a client of the shape {shape}, B = {batch}, {LENGTH} tokens"
    try:
        with encoder(shape) as folder:
            taken, bare, _ = compared(folder, batch, turns=2 if quick else 5, device=device)
            peak, model, activations = peak_and_parts(partial(run_of, folder, batch, "sphere"))
    except InputError as error:
        yield Row(what=what, ours=str(error), beside="-", ratio=None)
        return
    for kind, seconds in taken.items():
        yield Row(
            what=f"{what}, {kind}",
            ours=f"{milliseconds(seconds)} a round",
            beside=f"{milliseconds(bare)} its two forward passes",
            ratio=seconds / bare,
            promised=(PROMISED[kind] if device == "cpu" else 2.0),
        )
    yield Row(
        what=f"{what}: memory, on the CPU",
        ours=f"{peak / 1e6:.1f} MB",
        beside=f"model {model / 1e6:.1f} and activations {activations / 1e6:.1f} MB",
        ratio=peak / (model + activations),
        promised=PROMISED_MEMORY,
    )


@torch.no_grad()
def memory(name, batch):
    """Print the peak memory of a round by method: what tensors and Python hold, the table and the server included."""
    with encoder(name) as folder:
        for what, (method, options) in STEPS.items():
            peak, model, activations = peak_and_parts(partial(method_run, folder, batch, method, options))
            times = f"{peak / model:.2f} models, {peak / (model + activations):.2f} times model and activations"
            print(f"{what}: {peak / 1e6:,.0f} MB, {times}")
    print(f"model {model / 1e6:,.1f} MB; activations {activations / 1e6:,.1f} MB, the most that one forward pass of")
    print(f"{batch} records of {LENGTH} tokens holds at once without a graph: hidden states, attention, feed-forward")


@torch.no_grad()
def main():
    """Print the unit costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SHAPES, default="bert")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--memory", action="store_true", help="peak memory by method instead, of batches of 8")
    arguments = parser.parse_args()
    if arguments.memory:
        memory(arguments.model, 8)
        return
    batch = arguments.batch
    with encoder(arguments.model) as folder:
        taken, bare, run = compared(folder, batch, turns=arguments.turns)
        parameters = run.federation.clients[0].parameters.flat.numel()
        del run
        peak, model, activations = peak_and_parts(partial(run_of, folder, batch, "sphere"))
    print(f"client: {parameters:,} parameters, {parameters * 4 / 1e6:,.0f} MB, runs of {LENGTH} tokens")
    print(f"two forward passes of {batch} records: {bare:.2f} s, {bare / batch:.3f} s a record")
    for kind, seconds in taken.items():
        print(f"a round, {kind}: {seconds:.2f} s, {seconds / bare:.2f} times its forward passes")
    print(
        f"peak memory of a round: {peak / 1e6:,.0f} MB, {peak / (model + activations):.2f} times model and activations"
    )


if __name__ == "__main__":
    main()
