"""Runs the notebooks of this folder from top to bottom and writes them with what they print; needs nbclient, ipykernel.

python examples/notebooks/run.py                 each in place
python examples/notebooks/run.py --out FOLDER    into FOLDER, and those here stay as they are
python examples/notebooks/run.py python          python.ipynb alone
"""

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run all; a cell that raises ends it."""
    parser = argparse.ArgumentParser(description="Run the notebooks of this folder.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder that receives them")
    parser.add_argument("names", nargs="*", help="notebooks, by default all")
    arguments = parser.parse_args()
    out = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    for path in [HERE / f"{name}.ipynb" for name in arguments.names] or sorted(HERE.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        where = {"metadata": {"path": str(out)}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where, record_timing=False).execute()
        # The kernel's Python version is not a property of the notebook.
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, out / path.name)
        print(path.name)


if __name__ == "__main__":
    main()
