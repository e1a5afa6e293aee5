"""The app of vertical.py in one process: what it trains on, and its training, for `dpzv-audit attack --system`."""

import torch
from flwr.clientapp import ClientApp
from vertical import bottom, descend, embed, patients, serve

from dpzv_audit.systems.flower import local_grid


def data():
    """Return the patients of the app."""
    blocks, malignant = patients()
    return {"features": blocks, "labels": malignant}


def train(task, record, seed, rounds=1, protect=None, clear_top=False):
    """Train as the app does, with the task's records and labels."""
    x, _ = task.torch()
    app = ClientApp()
    app.query("embed")(lambda message, context: embed(message, context, x[context.node_config["partition-id"]]))
    app.train("descend")(lambda message, context: descend(message, context, x[context.node_config["partition-id"]]))
    grid = local_grid(app, record, {"seed": seed})
    top = serve(grid, task.labels, rounds, seed, protect, clear_top)
    bottoms = [bottom(context, block.shape[1]) for context, block in zip(grid.contexts.values(), x, strict=True)]

    def predict(blocks):
        with torch.no_grad():
            logits = top(torch.cat([model(block) for model, block in zip(bottoms, blocks, strict=True)], 1))
        return torch.cat([-logits, logits], 1)

    return {"predict": predict, "clients": dict(enumerate(bottoms, start=1))}
