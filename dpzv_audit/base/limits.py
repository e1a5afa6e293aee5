"""The largest sizes that a configuration or a claims file may name: each is checked before anything is planned.

A size may be legal alone and too large together with others, so products have limits of their own. What is within all
limits is checked in seconds and within 500 MB, and planned in seconds; a training may take as long, and as much, as it
takes.
"""

MOST_RECORDS = 10**9
"""Records of a simulated deployment: more than any party of vertical learning holds about people."""

MOST_CLIENTS = 1_000
"""Clients: parties that hold columns about the same people. Papers have at most 100; a plan counts rounds by client."""

MOST_EPOCHS = 1_000_000
"""Epochs: the law of a record's participations has an entry for each."""

MOST_ROUNDS = 10_000_000
"""Rounds of a run, epochs x floor(D/B): a plan holds the active client of each, 80 MB. A day of training or more."""

MOST_BATCH = MOST_RECORDS
"""Records in a batch: at most all of them."""

WIDEST = 65_536
"""Width of an embedding or a hidden layer: 16 times that of the widest published language models' layers of 4,096."""

MOST_WEIGHTS = 100_000_000
"""Weights of the server's first layer, clients x embedding x hidden: 400 MB in single precision."""

MOST_BLOCKS = 1_000
"""Blocks of a transformer: ten times those of the largest published."""

MOST_EMBEDDED = 4_000_000_000
"""Numbers in the server's table, records x clients x embedding: 16 GB in single precision."""

MOST_DIRECTIONS = 10_000
"""Directions that are averaged, or sent in one round: a hundred times what papers use."""

MOST_LOCAL_STEPS = 10_000
"""Steps of a client between two messages: a hundred times what papers use."""

MOST_QUERIES = 10_000
"""Times that a curious client asks about one batch: its own messages give it away long before."""

LONGEST_TEXT = 1_000
"""Characters of a name or a path in a configuration or a claim."""

MOST_SETTINGS = 100
"""Settings of a method in one claim: no method has half as many."""

MOST_COLUMNS = 10_000
"""Columns of a table that a claim lists: a hundred times what published tables have."""

LARGEST_SIZES = {
    "batch_size": MOST_BATCH,
    "epochs": MOST_EPOCHS,
    "embedding": WIDEST,
    "hidden": WIDEST,
    "frozen_blocks": MOST_BLOCKS,
    "client_blocks": MOST_BLOCKS,
    "directions": MOST_DIRECTIONS,
    "local_steps": MOST_LOCAL_STEPS,
    "participation_cap": MOST_ROUNDS,
}
"""Limits of whole numbers by their names in a configuration."""
