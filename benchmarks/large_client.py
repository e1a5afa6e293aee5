"""Unit costs of a round of DPZV whose client is as large as BERT: processor time, memory, bytes; for plans on paper.

A BERT of the given size with random weights stands for a pre-trained one: cost does not depend on weights. One client
holds runs of token ids, the server a small top model; noise and clipping are on. Times are processor seconds of one
thread, the least of a few rounds; a round is split into its two evaluations (by batch size, from the slope) and what
does not depend on the batch: directions drawn and parameters moved. Rounds of the two batch sizes take turns, so that
neither meets the quieter machine. Needs the extra `[text]`.

Run: OMP_NUM_THREADS=1 python benchmarks/large_client.py            BERT-base: 3 GB of memory, three minutes
     OMP_NUM_THREADS=1 python benchmarks/large_client.py --layers 2 --width 128
"""

import argparse
import math
import tempfile
import time

import numpy as np
import torch
import transformers

from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.reproduce.memory import peak_of_a_round
from mechanisms import METHODS
from mechanisms.core.context import RunContext, TrainingData
from mechanisms.methods.dpzv import DPZVRun

LENGTH, VOCABULARY = 32, 30522
BATCHES = (1, 16)
ROUNDS = 3


def dataset(records):
    """Random token ids at one client, two classes."""
    generator = np.random.default_rng(0)
    ids = generator.integers(1, VOCABULARY, (records, LENGTH))
    tokens = Records(features=(ids,), labels=np.arange(records) % 2)
    return VerticalDataset("tokens", tokens, tokens, 2, "one client", {}, vocabulary=VOCABULARY)


def run_of(data, folder, batch):
    """A run before its first round."""
    config = METHODS["dpzv"].configure(
        batch_size=batch, client_model="transformer", transformer=folder, perturbation="in-place", momentum=0.0
    )
    ready = TrainingData.of(data, dtype=torch.float32, device="cpu")
    return DPZVRun(ready, config, RunContext(seed=0))


@torch.no_grad()
def main():
    """Print the unit costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    arguments = parser.parse_args()
    config = transformers.BertConfig(
        num_hidden_layers=arguments.layers,
        hidden_size=arguments.width,
        num_attention_heads=max(1, arguments.width // 64),
        intermediate_size=4 * arguments.width,
    )
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        transformers.BertModel(config).save_pretrained(folder)
        data = dataset(max(BATCHES))
        runs = {batch: run_of(data, folder, batch) for batch in BATCHES}
        seconds = dict.fromkeys(BATCHES, math.inf)
        for _ in range(ROUNDS):
            for batch, run in runs.items():
                begun = time.process_time()
                run.step()
                seconds[batch] = min(seconds[batch], time.process_time() - begun)
        last = runs[max(BATCHES)]
        parameters = last.federation.clients[0].parameters.flat.numel()
        ledger = last.federation.channel.ledger
        del runs, run, last
        peak = peak_of_a_round(lambda: run_of(data, folder, max(BATCHES)))
    small, large = BATCHES
    a_record = (seconds[large] - seconds[small]) / (large - small)
    print(f"client: {parameters:,} parameters, {parameters * 4 / 1e6:,.0f} MB, runs of {LENGTH} tokens")
    print(f"two evaluations, a record: {a_record:.2f} s")
    print(f"directions drawn and parameters moved, a round: {seconds[small] - small * a_record:.2f} s")
    print(f"peak memory of a round, batch of {large}: {peak / 1e6:,.0f} MB, {peak / (4 * parameters):.2f} models")
    print(f"rounds timed: {ROUNDS}, of {ledger.up:,} bytes up and {ledger.down:,} down in all, the table's included")


if __name__ == "__main__":
    main()
