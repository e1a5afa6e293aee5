"""The data that a claim on a training names: counted without being loaded, or loaded once for all claims."""

from weakref import WeakValueDictionary

from ..base.errors import with_options
from ..base.files import data_digest
from ..data import DATASETS, CsvTable, load
from ..data.vertical import VerticalDataset
from .access import Access
from .file import TABLE, OwnClaim, TrainedClaim, said_by

_alive: WeakValueDictionary[str, VerticalDataset] = WeakValueDictionary()
_sizes: dict[str, tuple[int, int]] = {}


def sizes_of(claim: TrainedClaim | OwnClaim, access: Access) -> tuple[int, int]:
    """Return the training records and the clients of the data that a claim names, which are counted, not loaded.

    Raises `InputError` for data that are absent or do not go with the claim.
    """
    key = _data_named(claim, access)
    if key not in _sizes:
        with access.data_folder(claim) as folder:
            if claim.csv is None:
                spec = DATASETS.named(claim.dataset or "digits", "dataset")
                _sizes[key] = spec.count(clients=claim.clients, data_dir=folder)
            else:
                _sizes[key] = _table(claim, access).count()
    return _sizes[key]


def loaded(claim: TrainedClaim | OwnClaim, access: Access) -> VerticalDataset:
    """Return the data that a claim names, digits where none, the same object for all claims that are on them.

    Twenty copies would fill the memory. Raises `InputError` for data that cannot be read, and those out of bounds.
    """
    key = _data_named(claim, access)
    data = _alive.get(key)
    if data is None:
        with access.data_folder(claim) as folder:
            if claim.csv is None:
                data = load(claim.dataset or "digits", clients=claim.clients, data_dir=folder)
            else:
                data = _table(claim, access).load()
        _alive[key] = data
    return data


def facts_of(data: VerticalDataset) -> dict[str, object]:
    """Return what a claim's evidence says of its data: digests, partition and, where there are any, hints."""
    hints = {"hints": [with_options(hint) for hint in data.hints]} if data.hints else {}
    return {"digests": data.digests, "partition": data.partition, **hints}


def _data_named(claim: TrainedClaim | OwnClaim, access: Access) -> str:
    """Return the cache key of a claim's data: the settings that name them, and where files lie."""
    settings = said_by(claim)
    names = ("dataset", "data_dir", "clients", *TABLE)
    return str([access.folder, access.root, {key: settings.get(key) for key in names}])


def _table(claim: TrainedClaim | OwnClaim, access: Access) -> CsvTable:
    """Return the table that a claim names."""
    path, *test = access.files(claim)
    return CsvTable(
        path=path,
        label=claim.label or "",
        clients=claim.clients,
        groups=claim.columns or None,
        categories=claim.categories,
        scales=claim.scales,
        drop=claim.drop,
        test=test[0] if test else None,
        separator=claim.separator or ",",
        classes=claim.classes or None,
        task=claim.task or "classification",
    )


def data_digest_of(claim: TrainedClaim | OwnClaim, access: Access) -> str:
    """Return a digest of the data that a claim names; "" where it names none. Raises `Undigested` as `data_digest`."""
    with access.data_folder(claim) as folder:
        if claim.csv is not None:
            return data_digest(access.files(claim))
        return "" if claim.dataset is None else DATASETS.named(claim.dataset, "dataset").digest(folder)
