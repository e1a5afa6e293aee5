"""Files of published data sets as their servers pack them: IDX arrays, and archives."""

import hashlib
import io
import struct
import tarfile
from dataclasses import replace

import numpy as np


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def idx_bytes(array):
    return struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()


def idx_arrays(train, test):
    """Random images and labels of the four files of an IDX data set."""
    random = np.random.default_rng(0)
    made = {}
    for part, count in (("train", train), ("test", test)):
        made[f"{part}_images"] = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        made[f"{part}_labels"] = random.integers(0, 10, count, dtype=np.uint8)
    return made


def declared_as(file, array):
    """The declaration of a file as if it held this array."""
    return replace(file, shape=array.shape, md5=md5(idx_bytes(array)))


def tar_of(path, files):
    """An archive of files by name."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path
