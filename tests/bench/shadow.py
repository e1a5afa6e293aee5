"""What shadow models cost on digits: a whole run of K = 128 on coin flips against the bare arithmetic in it.

The bare arithmetic is a loop of the very matrix products of one round, captured as they ran, on ready tensors, times
the number of rounds. Both are taken in turn within one process. A ratio of at most 2.5 is the aim.

Run: python tests/bench/shadow.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from replicas import CaptureProducts, seconds

from attacks.contract import AttackSetting
from attacks.mount_membership import chosen_rows, coins_of, pool_of, train_on_coins
from dpzv_audit.data import load
from mechanisms import METHODS
from mechanisms.config import DPZVConfig
from mechanisms.federation import TrainingData
from mechanisms.plan import plan
from mechanisms.registry import run_of

REPLICAS = 128


def ratio(name: str, *, batch_size: int, epochs: int, turns: int) -> tuple[float, float]:
    """(milliseconds a round of all shadow models, median ratio to the bare arithmetic)."""
    method = METHODS[name]
    config = method.configure(batch_size=batch_size, epochs=epochs)
    setting = AttackSetting(method=method, config=config, dataset=load("digits"), adversary="release")
    pool = pool_of(setting, 2 * 704)
    coins = coins_of(0, range(REPLICAS), 704)
    rounds = epochs * (704 // batch_size)
    products = captured_products(setting, pool, coins)
    found, each = [], []
    for _ in range(turns):
        start = time.perf_counter()
        train_on_coins(pool, setting, coins, replicas=range(REPLICAS))
        taken = time.perf_counter() - start
        found.append(taken / (rounds * seconds(products, 20)))
        each.append(1e3 * taken / rounds)
    return statistics.median(each), statistics.median(found)


def captured_products(setting, pool, coins):  # type: ignore[no-untyped-def]
    """A function that runs the bare products of one round of these shadow models."""
    config, rows = setting.config, chosen_rows(coins)
    data = TrainingData.of(pool, dtype=torch.float32, device="cpu", labels=pool.train.labels[rows])
    data = TrainingData(
        data.features,
        data.labels,
        data.test_features,
        data.test_labels,
        data.classes,
        selection=torch.from_numpy(rows),
    )
    options = {"seed": 0, "replicas": range(len(coins))}
    if isinstance(config, DPZVConfig):
        from mechanisms.dpzv import DPZVRun

        run = DPZVRun(data, config, plan(config, records=rows.shape[1], clients=pool.clients, seed=0), **options)
    else:
        run = run_of(config)(data, config, **options)
    for _ in range(4):
        run.step()
    with CaptureProducts() as captured:
        run.step()
    calls = captured.calls

    def products() -> None:
        for call in calls:
            call()

    return products


@torch.no_grad()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"{REPLICAS} shadow models of 704 digits, {arguments.threads} threads; medians of {arguments.turns} turns")
    print("method      B   ms/round of all   whole run / bare products")
    for name in ("split", "vafl", "dpzv"):
        for batch_size in (16, 64):
            each, against = ratio(name, batch_size=batch_size, epochs=20, turns=arguments.turns)
            print(f"{name:10} {batch_size:3} {each:12.2f} {against:20.2f}", flush=True)


if __name__ == "__main__":
    main()
