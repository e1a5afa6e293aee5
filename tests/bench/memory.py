"""Peak memory of one round on a ResNet-18 at any batch and image size: `dpzv-audit reproduce dpzv-figure4-memory`.

Run: python tests/bench/memory.py --batch-size 32 --size 64
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from dpzv_audit.reproduce import reproduce, to_markdown
from dpzv_audit.reproduce.memory import BATCH_SIZE, FIGURE_4, IMAGE_SIZE, PeakMemory


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
    parser.add_argument("--size", type=int, default=IMAGE_SIZE, help="rows and columns of an image")
    arguments = parser.parse_args()
    batch, size = arguments.batch_size, arguments.size
    bars = [item for item in FIGURE_4.items if isinstance(item, PeakMemory)]
    items = tuple(replace(bar, batch_size=batch, image_size=size) for bar in bars)
    about = f"One client with a ResNet-18, batches of {batch} images of {size} x {size}, no momentum."
    table = replace(FIGURE_4, items=items, about=about)

    def no_data(keywords: object) -> None:
        raise AssertionError("memory is measured on random images")

    print(to_markdown(table, reproduce(table, no_data, epochs=1, seeds=1)))


if __name__ == "__main__":
    main()
