"""Trains a two-party logistic model in numpy and writes what its parties sent as a transcript, without the tool.

    python write.py FOLDER     writes FOLDER/run (manifest.json, tensors.safetensors), labels.csv and bank.csv

A bank (client 1) and a shop (client 2) hold twelve features each of the same 1,000 customers, a lender (party 0) which
of them, about one in ten, defaulted. Only numpy and safetensors are needed.
"""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)

# Who defaults is a little above average in every feature.
labels = (rng.random(1000) < 0.1).astype(int)
values = rng.standard_normal((1000, 24)) + 0.2 * labels[:, None]
blocks = np.split(values, 2, axis=1)

tensors, messages = {}, []


def sent(round_, sender, receiver, kind, numbers, ids):
    """Write down one message: this and `manifest` below are all that a transcript takes."""
    name = f"m{len(messages)}"
    tensors[name] = np.ascontiguousarray(numbers, dtype=np.float32)
    tensors[f"ids{round_}"] = ids.astype(np.int64)
    messages.append(
        {"round": round_, "sender": sender, "receiver": receiver, "kind": kind, "tensor": name, "ids": f"ids{round_}"}
    )


# Each client sends four numbers for a record, linear in its measurements; a logistic model on all eight is the top.
bottoms = [rng.standard_normal((block.shape[1], 4)) / 4 for block in blocks]
top, bias = rng.standard_normal(8) / 4, np.log(0.1 / 0.9)
round_ = 0
for _ in range(3):  # passes over the data
    for ids in np.array_split(rng.permutation(len(labels)), 16):
        up = [block[ids] @ bottom for block, bottom in zip(blocks, bottoms, strict=True)]
        joined = np.concatenate(up, axis=1)
        error = 1 / (1 + np.exp(-(joined @ top + bias))) - labels[ids]
        down = np.split(error[:, None] * top, 2, axis=1)
        for client in (1, 2):
            sent(round_, client, 0, "embeddings", up[client - 1], ids)
        for client in (1, 2):
            sent(round_, 0, client, "gradient", down[client - 1], ids)
            bottoms[client - 1] -= 0.1 * blocks[client - 1][ids].T @ down[client - 1] / len(ids)
        top, bias = top - 0.1 * joined.T @ error / len(ids), bias - 0.1 * error.mean()
        round_ += 1

manifest = {
    "schema": "dpzv-audit/transcript/1",
    "records": len(labels),
    "clients": 2,
    "classes": 2,
    "files": ["tensors.safetensors"],
    "messages": messages,
}
(folder / "run").mkdir(parents=True)
save_file(tensors, folder / "run" / "tensors.safetensors")
(folder / "run" / "manifest.json").write_text(json.dumps(manifest))
(folder / "labels.csv").write_text("label\n" + "".join(f"{label}\n" for label in labels))
# What the bank knows, to score attacks on it: a row for each record.
names = ",".join(f"x{number}" for number in range(1, 13))
np.savetxt(folder / "bank.csv", blocks[0], "%.6f", delimiter=",", header=names, comments="")
