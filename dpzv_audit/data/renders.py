"""Folders of views: one folder a class, V image files a shape, a view a client; ModelNet40's 12 renders (paper 001).

Files are `SHAPE_VIEW.png`, or `.jpg`, where VIEW is a number after `_`, `-` or `.` (or after a `v` there)
(`airplane_0627_001.png`, `airplane_0627.obj.shaded_v001.png`), in `CLASS/train/` and `CLASS/test/` or in `CLASS/`.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpzv_audit.data.files import read_bounded, unreadable
from dpzv_audit.data.images import COLOURS, check_look, prepared, view_blocks
from dpzv_audit.data.partition import split_evenly
from dpzv_audit.data.spec import DataRequest, declared
from dpzv_audit.data.vertical import Records, VerticalDataset
from dpzv_audit.errors import InputError, check_count

VIEW_NAME = re.compile(r"(?P<shape>.+)[_.\-]v?(?P<view>[0-9]{1,4})\.(?:png|jpg|jpeg)", re.IGNORECASE)
FILE_BYTES = 16 << 20
SIDE_LIMIT = 4096
FILE_LIMIT = 2_000_000


@dataclass(frozen=True)
class Shape:
    """One object: its class, whether it trains, its name, and its image files by view."""

    label: int
    train: bool
    name: str
    files: tuple[Path, ...]


def read_modelnet40(
    request: DataRequest, *, subset: bool = False, colour: str = "grey", size: int = 32
) -> VerticalDataset:
    """Return ModelNet40's renders (40 classes, 12 views of each shape), pixels in [0, 1], as `load_views` cuts them.

    With `subset` fewer classes will do. Raises `InputError` for other values, for folders that are no class of
    ModelNet40, and for missing or malformed files.
    """
    classes, folder = declared("modelnet40", "classes", tuple[str, ...]), request.folder
    absent = [kind for kind in classes if not (folder / kind).is_dir()]
    if len(absent) == len(classes):
        raise request.spec.missing(folder / absent[0])
    present = len(classes) - len(absent)
    if absent and not subset:
        found = f"{folder}: has {present} of modelnet40's {len(classes)} class folders, not {absent[0]}"
        raise InputError(f"{found}; give ‹subset› to use what is there")
    data = load_views(folder, name="modelnet40", clients=request.clients, colour=colour, size=size, classes=classes)
    return replace(data, notes=(f"a subset: {present} of {len(classes)} classes",) if absent else ())


def load_views(
    folder: Path,
    *,
    size: int,
    name: str = "views",
    views: int = 12,
    clients: int | None = None,
    colour: str = "grey",
    classes: Sequence[str] | None = None,
) -> VerticalDataset:
    """Return the shapes in `folder`, which has a folder a class, pixels in [0, 1].

    `classes` lists the classes in the order of their labels, some of which may be absent; without it they are
    the folders' names, sorted, and `fitted` of the data set says so. `clients` (a divisor of `views`, default
    `views`) hold views / clients neighbouring views each, as channels: blocks (N, C views / clients, size, size),
    C = 3 for `colour` "rgb" and 1 for "grey"; `size` divides the images' side. A class's `train/` and `test/` make
    the parts; where it has neither, a fixed hash of each shape's name sends about a fifth to the test. Raises
    `InputError` naming the file or folder for images that are not square PNG or JPEG files of one size, for other
    names, and for a shape that has not `views` views.
    """
    count = views if clients is None else clients
    each = split_evenly(check_count("views", views), count, name="clients", of="views")
    if colour not in COLOURS:
        raise InputError(f"must be {' or '.join(COLOURS)}", "colour", colour)
    names = [place.name for place in _class_folders(folder)] if classes is None else list(classes)
    shapes = list_shapes(folder, views, names)
    if not shapes:
        raise InputError(f"{folder}: has no shapes, must hold one folder a class")
    first = shapes[0].files[0]
    side = len(decode_image(first, read_bounded(first, FILE_BYTES)))
    check_look(colour, size, side)
    digest = hashlib.sha256()

    def records(train: bool) -> Records:
        chosen = [shape for shape in shapes if shape.train == train]
        if not chosen:
            raise InputError(f"{folder}: has no {'train' if train else 'test'} shapes, must have at least one")
        values = np.empty((len(chosen), views, 3 if colour == "rgb" else 1, size, size), dtype=np.float32)
        for row, shape in enumerate(chosen):
            for view, path in enumerate(shape.files):
                content = read_bounded(path, FILE_BYTES)
                digest.update(hashlib.sha256(content).digest())
                image = decode_image(path, content)
                if len(image) != side:
                    raise InputError(f"{path}: is {len(image)} pixels wide, must be {side} like {first.name}")
                values[row, view] = prepared(image, colour=colour, size=size)
        labels = np.array([shape.label for shape in chosen], dtype=np.int64)
        return Records(features=view_blocks(values, count), labels=labels)

    return VerticalDataset(
        name=name,
        train=records(True),
        test=records(False),
        classes=len(names),
        partition=f"{count} clients, views: {each} of {views} views each, {colour}, {size} x {size} pixels",
        digests={f"{name}/images": digest.hexdigest()},
        fitted=() if classes is not None else ("the set of classes was read off the folders' names",),
    )


def list_shapes(folder: Path, views: int, classes: Sequence[str]) -> list[Shape]:
    """Return all shapes in `folder`, by class and name; `InputError` for what does not belong there."""
    shapes: list[Shape] = []
    budget = FILE_LIMIT
    for place in _class_folders(folder):
        if place.name not in classes:
            raise InputError(f"{place}: is no class, must be one of {', '.join(classes)}")
        label = classes.index(place.name)
        parts = {part: place / part for part in ("train", "test") if (place / part).is_dir()}
        groups = parts.items() if parts else [("", place)]
        for part, inner in groups:
            for name, files in _grouped(_listed(inner), views).items():
                train = part == "train" if part else not _in_test(f"{place.name}/{name}")
                shapes.append(Shape(label, train, name, files))
                budget -= len(files)
        if budget < 0:
            raise InputError(f"{folder}: has more than {FILE_LIMIT} images, must have {FILE_LIMIT} at most")
    return shapes


def decode_image(path: Path, content: bytes) -> npt.NDArray[np.uint8]:
    """Return a square PNG or JPEG image as uint8 (H, H, 3); `InputError` naming `path` if it is none.

    Its size is read from its header and bounded before any pixel is unpacked.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                width, height = image.size
                if width != height or width > SIDE_LIMIT:
                    right = f"must be square, at most {SIDE_LIMIT} pixels wide"
                    raise InputError(f"{path}: is {width} x {height} pixels, {right}")
                return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except UnidentifiedImageError as error:
        raise InputError(f"{path}: is no PNG or JPEG image, must be one") from error
    except (OSError, ValueError, SyntaxError, EOFError, Warning, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: is no PNG or JPEG image ({' '.join(str(error).split())[:200]})") from error


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; must hold one folder a class")
    return [inner for inner in _listed(folder) if inner.is_dir() and not inner.name.startswith(".")]


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error


def _grouped(paths: Iterable[Path], views: int) -> dict[str, tuple[Path, ...]]:
    found: dict[str, dict[int, Path]] = {}
    for path in paths:
        if path.name.startswith("."):
            continue
        match = VIEW_NAME.fullmatch(path.name)
        if match is None or not path.is_file():
            raise InputError(f"{path}: does not belong here, must be an image SHAPE_VIEW.png or SHAPE_VIEW.jpg")
        ring = found.setdefault(match["shape"], {})
        if int(match["view"]) in ring:
            raise InputError(f"{path}: is a second file for view {int(match['view'])} of {match['shape']!r}")
        ring[int(match["view"])] = path
    for shape, ring in found.items():
        if len(ring) != views:
            first = next(iter(ring.values()))
            raise InputError(f"{first}: shape {shape!r} has {len(ring)} views, must have {views}")
    return {shape: tuple(ring[view] for view in sorted(ring)) for shape, ring in found.items()}


def _in_test(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] < 51  # 51 of 256: a fifth
