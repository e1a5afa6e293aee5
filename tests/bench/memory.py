"""Peak memory of one round on a ResNet-18 at any batch and image size: `dpzv-audit reproduce dpzv-figure4-memory`.

Run: python tests/bench/memory.py --batch-size 32 --size 64
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

from ratios import Row

from dpzv_audit.reproduce import TABLES, Setting, reproduce, to_markdown
from dpzv_audit.reproduce.memory import PeakMemory

FIGURE_4 = TABLES["dpzv-figure4-memory"]
PROMISED = 1.3
"""A DPZV client's step in place takes at most so many times its model and the activations of one batch."""


def rows(*, quick: bool = False, device: str = "cpu") -> Iterator[Row]:
    """The peak of a client's round over its model and the activations of a batch, by method."""
    for bar in bars(PeakMemory.batch_size, 16 if quick else PeakMemory.image_size):
        found = bar.measured(device)
        model, activations = found["model_megabytes"], found["activations_megabytes"]
        yield Row(
            what=f"{bar.label}, ResNet-18, B = {bar.batch_size}, {bar.image_size} x {bar.image_size}",
            ours=f"{found['peak_megabytes']:.1f} MB",
            beside=f"model {model:.1f} and activations {activations:.1f} MB",
            ratio=found["peak_megabytes"] / (model + activations),
            promised=PROMISED if bar.options.get("perturbation") == "in-place" else None,
        )


def bars(batch: int, size: int) -> tuple[PeakMemory, ...]:
    """What the figure measures, at another batch and image size."""
    kept = (item for item in FIGURE_4.items if isinstance(item, PeakMemory))
    return tuple(replace(bar, batch_size=batch, image_size=size) for bar in kept)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=PeakMemory.batch_size)
    parser.add_argument("--size", type=int, default=PeakMemory.image_size, help="rows and columns of an image")
    arguments = parser.parse_args()
    batch, size = arguments.batch_size, arguments.size
    about = f"One client with a ResNet-18, batches of {batch} images of {size} x {size}, no momentum."
    table = replace(FIGURE_4, items=bars(batch, size), about=about)

    def no_data(keywords: object) -> None:
        raise AssertionError("memory is measured on random images")

    print(to_markdown(table, reproduce(table, Setting(load=no_data, epochs=1, seeds=1))))


if __name__ == "__main__":
    main()
