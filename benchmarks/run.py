"""One table of ratios out of all benchmarks, each measured side by side in one run, with what was promised of it.

    OMP_NUM_THREADS=1 python benchmarks/run.py                    every section, under ten minutes on an idle machine
    OMP_NUM_THREADS=1 python benchmarks/run.py --quick            fewer cases and turns: a minute or two
    OMP_NUM_THREADS=1 python benchmarks/run.py memory costs       some sections
    OMP_NUM_THREADS=1 python benchmarks/run.py --device cuda      on a GPU what runs on one
    OMP_NUM_THREADS=1 python benchmarks/run.py --output docs/printed/benchmarks.md

Times are of the processor where one process works, the least of several turns taken in turn with what they are held
against; by the clock on a GPU, and for the throughput of an audit. The page names the machine and its load, and says of
every promise whether it was kept, or by how much it was not.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import accounting
import costs
import estimators
import grid
import large_client
import memory
import recording
import replicas
import rounds
import shadow
import throughput
import torch
import view
from ratios import Row


@dataclass(frozen=True)
class Section:
    """A part of the table: its name, what its ratios are, and what measures them; with `on_gpu` on a device too."""

    name: str
    title: str
    ratio: str
    rows: Callable[..., Iterator[Row]]
    on_gpu: bool = True
    note: str = ""


SECTIONS = (
    Section(
        "replicas",
        "Replicas against one after another",
        "a round at K = 1 over a replica-round of the stack: how much a stack gains",
        replicas.stack_rows,
    ),
    Section(
        "rounds",
        "A round against the bare arithmetic in it",
        "a DPZV round on digits over its own matrix products, run bare on ready tensors",
        replicas.product_rows,
        note="The three promises on replicas exclude each other in batches of 64: four times the products at K = 1, "
        "divided by twelve, is less than a replica's share of the bare products at K = 128.",
    ),
    Section(
        "sound",
        "A round of dpzv-sound against one of dpzv",
        "a round on digits over one of dpzv, whose server steps by its own gradient",
        replicas.sound_rows,
    ),
    Section(
        "grid",
        "Noise on a grid against float noise",
        "a round with noise in whole steps of a grid over one with noise in floating point",
        grid.rows,
    ),
    Section(
        "published",
        "A round against the published code of VFL-CZOFO",
        "a round, everything included, over the model work alone of the public code",
        rounds.rows,
    ),
    Section(
        "shadow",
        "Shadow models against the bare arithmetic in them",
        "a whole run of shadow models over the matrix products of its rounds",
        shadow.rows,
    ),
    Section(
        "accounting",
        "Accountants against prv-accountant and dp-accounting",
        "ours over the package's processor time; below, the accountant `prv` over what was promised of it",
        accounting.rows,
        on_gpu=False,
    ),
    Section(
        "estimators",
        "Estimators by number of scores",
        "over the same with a tenth of the scores (10 is a cost in proportion), and over what was promised",
        estimators.rows,
        on_gpu=False,
    ),
    Section(
        "throughput",
        "Audit throughput by workers",
        "audit trainings a second over those of this process alone, by the clock",
        throughput.rows,
    ),
    Section(
        "memory",
        "Memory of a client's step against its model",
        "the peak of a round over the client's model and the activations of one batch without gradients",
        memory.rows,
    ),
    Section(
        "large",
        "A round with a large client against its own forward passes",
        "a DPZV round in place over two forward passes of the same batch through the client's model",
        large_client.rows,
    ),
    Section(
        "recording",
        "Recording a training of the user's own",
        "a training with the recorder on both sides of the cut over the same without it",
        recording.rows,
        on_gpu=False,
    ),
    Section(
        "view",
        "The local page of a thousand runs",
        "seconds by the clock over the two that were promised until the list is drawn",
        view.rows,
        on_gpu=False,
    ),
    Section(
        "costs",
        "Cost against records, clients, rounds and replicas",
        "slope of log cost against log size: 1 is a cost in proportion",
        costs.rows,
    ),
)
BUSY = 0.3
"""Load a core from which on the page says that the machine was not idle."""


def machine(device):
    """Processor, cores, system and versions, in words; the GPU first where one is measured on."""
    return ", ".join(
        [
            *([torch.cuda.get_device_name()] if device != "cpu" else []),
            *(_processor(), f"{os.cpu_count()} cores", platform.system(), f"Python {platform.python_version()}"),
            *(f"{name} {version(name)}" for name in ("torch", "numpy", "scipy")),
            f"{torch.get_num_threads()} threads",
        ]
    )


def _processor():
    """The processor's model as Linux names it, elsewhere as Python does."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def load_words(before, after, cores):
    """The load averages over one minute, and what they mean for the figures."""
    words = f"Load average {before:.2f} when it started and {after:.2f} when it ended, of {cores} cores."
    if before > BUSY * cores:
        return (
            f"**The machine was not idle.** {words} Other work slows what is measured by the clock, and takes caches "
            "from the rest: the figures below are worse than an idle machine gives."
        )
    return words


def cells(row):
    """What the table shows of a row."""
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}" if row.ratio >= 0.01 else f"{row.ratio:.1g}"
    promised = "-" if row.promised is None else f"at {'least' if row.at_least else 'most'} {row.promised:g}"
    missed = row.missed_by
    verdict = "-" if missed is None else "kept" if missed <= 1.0 else f"missed, {missed:.2f} times"
    return row.what, row.ours, row.beside, ratio, promised, verdict


def markdown(section, rows):
    """A section of the page."""
    head = ("what", "measured", "beside", "ratio", "promised", "kept")
    about = f"Ratio: {section.ratio}." + (f" {section.note}" if section.note else "")
    lines = [f"## {section.title}", "", about, "", "| " + " | ".join(head) + " |"]
    lines.append("|---|---|---|---:|---|---|")
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def promises(rows):
    """How many promises were kept, and the others."""
    bound = [row for row in rows if row.missed_by is not None]
    missed = [row for row in bound if row.missed_by is not None and row.missed_by > 1.0]
    words = f"{len(bound) - len(missed)} of {len(bound)} promises kept."
    if missed:
        words += " Missed: " + "; ".join(f"{row.what} ({cells(row)[3]}, {cells(row)[4]})" for row in missed) + "."
    return words


def main():
    """Measure, print every row as it comes, and write the page where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(s.name for s in SECTIONS))
    parser.add_argument("--quick", action="store_true", help="Fewer cases and turns.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--output", type=Path, metavar="FILE", help="Write the page there, as Markdown.")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - {section.name for section in SECTIONS}
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in SECTIONS)}")
    torch.set_num_threads(1)
    chosen = [s for s in SECTIONS if not arguments.sections or s.name in arguments.sections]
    before, started = os.getloadavg()[0], time.perf_counter()
    pages, measured = [], []
    for section in chosen:
        if arguments.device != "cpu" and not section.on_gpu:
            continue
        print(f"\n{section.title}: {section.ratio}", flush=True)
        rows = []
        device = {"device": arguments.device} if section.on_gpu else {}
        for row in section.rows(quick=arguments.quick, **device):
            rows.append(row)
            print("  " + "  ".join(cells(row)), flush=True)
        pages.append(markdown(section, rows))
        measured += rows
    minutes = (time.perf_counter() - started) / 60.0
    flags = [*arguments.sections, *["--quick"] * arguments.quick, *["--device cuda"] * (arguments.device != "cpu")]
    command = " ".join(["OMP_NUM_THREADS=1 python benchmarks/run.py", *flags, f"--output {arguments.output}"])
    summary = [promises(measured), load_words(before, os.getloadavg()[0], os.cpu_count() or 1)]
    print("\n" + "\n".join(summary) + f"\n{minutes:.1f} minutes")
    if arguments.output:
        intro = (
            "# Benchmarks\n\nEvery ratio is of two things measured side by side, in turn, in one run. The promises are "
            "those that the project set itself before it measured.\n\n"
            "<!-- run: elsewhere, tests/benchmarks/test_run.py runs a section of it -->\n"
            f"```sh\n{command}\n```\n\n{machine(arguments.device)}; "
            f"{minutes:.1f} minutes in all. {summary[1]}\n\n{summary[0]}\n"
        )
        arguments.output.write_text("\n".join([intro, *pages]), encoding="utf-8")


if __name__ == "__main__":
    main()
