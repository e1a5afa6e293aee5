"""What shadow models cost on digits: a whole run of K = 128 on coin flips against the bare arithmetic in it.

The bare arithmetic is a loop of the very matrix products of one round, captured as they ran, on ready tensors, times
the number of rounds; what the run computes beside its rounds (the first table, what every model says of every record)
counts on the side of the run alone. A ratio of at most 2.5 was promised.

Run: python benchmarks/run.py shadow
"""

import statistics
from dataclasses import replace

import torch
from measuring import products_of, seconds
from ratios import Row, milliseconds

from attacks.core.setting import AttackSetting
from attacks.membership.mount import chosen_rows, coins_of, pool_of, train_on_coins
from dpzv_audit.data import load
from mechanisms import METHODS
from mechanisms.core.context import RunContext, TrainingData

REPLICAS = 128
RECORDS = 704
EPOCHS = 20
PROMISED = 2.5


def rows(*, quick=False, device="cpu"):
    """Shadow runs of three methods in batches of 64, the default, and of 16; `quick`: of 64 alone, one turn."""
    for name in ("split", "vafl", "dpzv"):
        for batch_size in (64,) if quick else (64, 16):
            setting = setting_of(name, batch_size, device)
            pool = pool_of(setting, 2 * RECORDS)
            coins = coins_of(0, range(REPLICAS), RECORDS)
            products = bare_products(pool, setting, coins)
            pairs = [shadow_run(pool, setting, coins, products) for _ in range(1 if quick else 3)]
            rounds = EPOCHS * (RECORDS // batch_size)
            whole, bare = (min(column) / rounds for column in zip(*pairs, strict=True))
            yield Row(
                what=f"{REPLICAS} shadow models, {name}, B = {batch_size}",
                ours=f"{milliseconds(whole)} a round",
                beside=f"{milliseconds(bare)} of products",
                ratio=statistics.median(run / alone for run, alone in pairs),
                promised=PROMISED,
            )


def setting_of(method, batch_size, device):
    """The setting of a membership attack on digits."""
    spec = METHODS[method]
    config = spec.configure(batch_size=batch_size, epochs=EPOCHS)
    return AttackSetting(method=spec, config=config, dataset=load("digits"), adversary="release", device=device)


def shadow_run(pool, setting, coins, products):
    """Seconds to train the shadow models and ask them about every record, and of as many rounds of bare `products`.

    The products of an epoch run after that epoch, so that other work on the machine slows both alike.
    """
    done, bare = 0, 0.0

    def after_epoch(rounds):
        nonlocal done, bare
        bare += seconds(products, rounds - done, device=setting.device) * (rounds - done)
        done = rounds

    watched = replace(setting, progress=after_epoch, trials=len(coins))
    whole = seconds(lambda: train_on_coins(pool, watched, coins), device=setting.device)
    return whole - bare, bare


def bare_products(pool, setting, coins):
    """A function that runs the bare products of one round of these shadow models."""
    chosen = chosen_rows(coins)
    data = TrainingData.of(pool, dtype=torch.float32, device=setting.device, labels=pool.train.labels[chosen])
    data = replace(data, selection=torch.from_numpy(chosen).to(setting.device))
    context = RunContext(seed=0, replicas=range(len(coins)), device=setting.device)
    run = setting.method.start(data, setting.config, context)
    return products_of(run.step)
