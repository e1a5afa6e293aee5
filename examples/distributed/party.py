"""The training of two_party.py as two processes over torch.distributed; each party records what it sends.

torchrun --standalone --nproc-per-node 2 party.py FOLDER
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from two_party import Bank, Insurer, batches, data

from dpzv_audit.systems import Recorder, Task
from dpzv_audit.systems.task import dataset_of

SERVER, CLIENT = 0, 1


def client(task, record, seed):
    """Play party 1."""
    insurer = Insurer(task.features[0], seed)
    for number, ids in enumerate(batches(len(task.labels), seed)):
        up = insurer.embed(ids)
        record.sent(number, CLIENT, SERVER, "embeddings", up, ids)
        dist.send(up, SERVER)
        down = torch.empty_like(up)
        dist.recv(down, SERVER)
        insurer.learn(down)


def server(task, record, seed):
    """Play party 0."""
    bank = Bank(task.features[1], task.labels, seed)
    for number, ids in enumerate(batches(len(task.labels), seed)):
        up = torch.empty(len(ids), Insurer.width)
        dist.recv(up, CLIENT)
        down = bank.answer(up, ids)
        record.sent(number, SERVER, CLIENT, "gradient", down, ids)
        dist.send(down, CLIENT)


def main():
    """Train as the party that this process is, and save what it sent in `FOLDER/party-0` or `FOLDER/party-1`."""
    dist.init_process_group("gloo")
    me = dist.get_rank()
    task = Task.of(dataset_of(data(), "two_party:data"))
    record = Recorder(task.records, task.clients)
    (client if me == CLIENT else server)(task, record, seed=0)
    record.save(Path(sys.argv[1]) / f"party-{me}", classes=task.classes)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
