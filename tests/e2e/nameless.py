"""A vertical Flower app that names no rounds, in the shape of Flower's own: nobody awaits replies to gradients.

Three clients hold the same patients in the same order. The server has a hidden layer with batch statistics, and Adam.
"""

import time

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn

from dpzv_audit.systems import flower

CLIENTS = 3
WIDTH = 16

client = ClientApp(mods=[flower.client_mod("seen", records=569, clients=CLIENTS, classes=2, tls=False)])
server = flower.RecordedServer(ServerApp(), "seen", records=569, clients=CLIENTS, classes=2, tls=False)


def data():
    """Return seven measurements, split 2, 3 and 2, and whose tumours are malignant."""
    values, benign = load_breast_cancer(return_X_y=True)
    values = StandardScaler().fit_transform(values)[:, :7].astype(np.float32)
    return {"features": np.split(values, (2, 5), axis=1), "labels": 1 - benign}


def columns(context):
    return torch.tensor(data()["features"][context.node_config["partition-id"]])


@client.query("generate_embeddings")
def on_query(message, context):
    return embed(message, context, columns(context))


@client.train("apply_gradients")
def on_train(message, context):
    return apply(message, context, columns(context))


@server.main()
def main(grid, context):
    learn(grid, data()["labels"], int(context.run_config["rounds"]), int(context.run_config["seed"]))


def bottom(context, width):
    torch.manual_seed(10 * int(context.run_config["seed"]) + context.node_config["partition-id"])
    model = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, WIDTH))
    if "model" in context.state:
        model.load_state_dict(context.state["model"].to_torch_state_dict())
    return model


def embed(message, context, x):
    up = ArrayRecord({"embedding": Array(bottom(context, x.shape[1])(x).detach().numpy())})
    place = ConfigRecord({"pos": context.node_config["partition-id"]})
    return Message(content=RecordDict({"arrays": up, "config": place}), reply_to=message)


def apply(message, context, x):
    model = bottom(context, x.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(x).backward(torch.tensor(message.content["gradients"]["local-gradients"].numpy()))
    optimizer.step()
    context.state["model"] = ArrayRecord(model.state_dict())
    return Message(content=RecordDict(), reply_to=message)


def learn(grid, labels, rounds, seed):
    torch.manual_seed(seed)
    y = torch.tensor(labels).float().unsqueeze(1)
    head = nn.Sequential(nn.Linear(CLIENTS * WIDTH, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    while len(nodes := list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.2)
    for _ in range(rounds):
        asked = [Message(RecordDict(), node, "query.generate_embeddings") for node in nodes]
        h = torch.zeros(len(y), CLIENTS * WIDTH)
        places = {}
        for reply in grid.send_and_receive(asked):
            place = int(reply.content["config"]["pos"])
            places[reply.metadata.src_node_id] = place
            h[:, place * WIDTH :][:, :WIDTH] = torch.tensor(reply.content["arrays"]["embedding"].numpy())
        h.requires_grad_()
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(head(h), y).backward()
        optimizer.step()
        parts = h.grad.split(WIDTH, 1)
        down = {node: ArrayRecord({"local-gradients": Array(parts[place].numpy())}) for node, place in places.items()}
        grid.push_messages(
            [Message(RecordDict({"gradients": own}), node, "train.apply_gradients") for node, own in down.items()]
        )


def train(task, record, seed):
    """Train in one process on the task's records and labels."""
    x, _ = task.torch()
    app = ClientApp()
    app.query("generate_embeddings")(lambda m, context: embed(m, context, x[context.node_config["partition-id"]]))
    app.train("apply_gradients")(lambda m, context: apply(m, context, x[context.node_config["partition-id"]]))
    learn(flower.local_grid(app, record, {"seed": seed}), task.labels, 2, seed)
