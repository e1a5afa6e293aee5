"""A vertical Flower app: clients send embeddings of shared patients, the server has labels and the top model."""

import time

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn

CLIENTS = 2
WIDTH = 4
RATE = 0.01

client = ClientApp()
server = ServerApp()


@client.query("embed")
def on_embed(message, context):
    """Answer with embeddings."""
    return embed(message, context, own_columns(context))


@client.train("descend")
def on_descend(message, context):
    """Learn from gradients."""
    return descend(message, context, own_columns(context))


@server.main()
def main(grid, context):
    """Train."""
    _, malignant = patients()
    serve(grid, malignant, int(context.run_config["rounds"]), int(context.run_config["seed"]))


def patients():
    """Return 30 measurements of 569 patients, a block of columns for each client, and whose tumours are malignant."""
    values, benign = load_breast_cancer(return_X_y=True)
    return np.split(StandardScaler().fit_transform(values).astype(np.float32), CLIENTS, axis=1), 1 - benign


def own_columns(context):
    """Return the columns of the client whose context this is."""
    return torch.tensor(patients()[0][context.node_config["partition-id"]])


def bottom(context, columns):
    """Return the client's model as the gradients so far have left it."""
    torch.manual_seed(10 * int(context.run_config["seed"]) + context.node_config["partition-id"])
    model = nn.Linear(columns, WIDTH)
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    return model


def embed(message, context, x):
    """Reply with the embeddings of all patients."""
    h = bottom(context, x.shape[1])(x)
    return Message(RecordDict({"up": ArrayRecord({"h": Array(h.detach().numpy())})}), reply_to=message)


def descend(message, context, x):
    """Take one step along the gradient at the embeddings."""
    model = bottom(context, x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    model(x).backward(torch.tensor(message.content["down"]["g"].numpy()))
    optimizer.step()
    context.state["model"] = ArrayRecord(model.state_dict())
    return Message(RecordDict(), reply_to=message)


def serve(grid, labels, rounds, seed, protect=None, clear_top=False):
    """Train with all clients, every round on all patients, and return the top model.

    `protect` changes the gradients (patients, width) before they are sent. The top model then moves by these alone, or
    with `clear_top` as without.
    """
    torch.manual_seed(seed)
    y = torch.tensor(labels).float().unsqueeze(1)
    top = nn.Linear(CLIENTS * WIDTH, 1)
    optimizer = torch.optim.SGD(top.parameters(), RATE)
    nodes = connected(grid)
    for number in range(rounds):
        replies = exchange(grid, nodes, "query.embed", number, [RecordDict() for _ in nodes])
        h = torch.cat([torch.tensor(reply.content["up"]["h"].numpy()) for reply in replies], 1).requires_grad_()
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(top(h), y).backward()
        down = h.grad
        if protect is not None:
            down = protect(down)
        if protect is not None and not clear_top:
            errors = down @ top.weight.detach().T / top.weight.detach().square().sum()
            top.weight.grad, top.bias.grad = (errors.T @ h).detach(), errors.sum(0)
        optimizer.step()
        parts = [Array(part.numpy().copy()) for part in down.split(WIDTH, 1)]
        exchange(grid, nodes, "train.descend", number, [RecordDict({"down": ArrayRecord({"g": p})}) for p in parts])
    return top


def connected(grid):
    """Return the ids of all clients' nodes, in order, once they are there."""
    while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.2)
    return nodes


def exchange(grid, nodes, what, number, contents):
    """Send each node what is for it, and return the replies in the nodes' order."""
    requests = [Message(one, node, what, group_id=str(number)) for node, one in zip(nodes, contents, strict=True)]
    return sorted(grid.send_and_receive(requests), key=lambda reply: nodes.index(reply.metadata.src_node_id))
