"""Objects seen from several sides, a view for each client: folders of renders (ModelNet40's 12, paper 001), ETH-80.

Colour and size follow from fixed arithmetic (luma weights, means over boxes). A folder of views has a folder for each
class, V image files for each shape. Files are `SHAPE_VIEW.png`, or `.jpg`, where VIEW is a number after `_`, `-` or `.`
(or after a `v` there) (`airplane_0627_001.png`, `airplane_0627.obj.shaded_v001.png`), in `CLASS/train/` and
`CLASS/test/` or in `CLASS/`. ETH-80 (Leibe, Schiele, 2003) has photographs of 80 objects, and is split by object.
"""

import hashlib
import io
import math
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..base.errors import InputError, check_count
from ..base.npy import read_npz
from .files import read_bounded, reading
from .spec import DataRequest, declared
from .vertical import Blocks, FloatArray, LabelArray, Pixels, Records, VerticalDataset, fixed_order, split_evenly

LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in a grey value (ITU-R BT.601)."""

COLOURS = ("rgb", "grey")


def check_look(colour: str, size: int, original: int) -> None:
    """Raise `InputError` unless `colour` is "rgb" or "grey" and `size` divides the images' `original` side."""
    if colour not in COLOURS:
        raise InputError(f"use {' or '.join(COLOURS)}", "colour", colour)
    split_evenly(original, size, name="size", of="pixels of the images' side")


def prepared(images: Pixels, *, colour: str, size: int) -> FloatArray:
    """Return images (..., H, H, 3) as float32 (..., C, size, size) in [0, 1], C = 3 for "rgb" and 1 for "grey".

    A pixel of the result is the mean over a box of H / size x H / size pixels, for a `size` that divides H. Each image
    is treated alone.
    """
    *lead, side, _, channels = images.shape
    box = side // size
    boxes = images.reshape(*lead, size, box, size, box, channels)
    means = boxes.mean(axis=(-4, -2), dtype=np.float32) / np.float32(255.0)
    if colour == "grey":
        means = (means * LUMA).sum(axis=-1, keepdims=True)
    return np.ascontiguousarray(np.moveaxis(means, -1, -3))


def view_blocks(views: FloatArray, clients: int, *, turned: bool = False) -> Blocks:
    """Cut (N, V, C, S, S) over `clients`, which divide V: V / clients neighbouring views each, as channels of an image.

    Blocks are (N, C V / clients, S, S); with as many clients as views, one view for each. Where `turned`, an object of
    a ring of views is V / clients records instead, N' = N V / clients: record r has views r, r + V / clients,
    r + 2 V / clients, ..., the same angles between clients in every record, and every view of every object used once.
    Blocks are (N', C, S, S); records of an object are neighbours, so that a split by object stays one.
    """
    count, all_views, channels, *side = views.shape
    each = all_views // clients
    shape = (count * each, channels, *side) if turned else (count, each * channels, *side)
    blocks = (views[:, start : start + each] for start in range(0, all_views, each))
    return tuple(np.ascontiguousarray(block).reshape(shape) for block in blocks)


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
    folder = request.folder
    classes, absent = _modelnet40_classes(folder)
    if len(absent) == len(classes):
        raise request.spec.missing(folder / absent[0])
    present = f"{len(classes) - len(absent)} of"
    if absent and not subset:
        raise InputError(
            f"{folder}: has {present} modelnet40's {len(classes)} class folders, not {absent[0]}; give ‹subset› "
            "to use what is there"
        )
    data = load_views(folder, name="modelnet40", clients=request.clients, colour=colour, size=size, classes=classes)
    return replace(data, notes=(f"a subset: {present} {len(classes)} classes",) if absent else ())


def _modelnet40_classes(folder: Path) -> tuple[tuple[str, ...], list[str]]:
    """Return the published classes, and those that have no folder here."""
    classes = declared("modelnet40", "class_names", tuple[str, ...])
    return classes, [name for name in classes if not (folder / name).is_dir()]


def count_modelnet40(request: DataRequest) -> int:
    """Return how many shapes train, by the names of their files; raises `InputError` as `read_modelnet40`."""
    classes, absent = _modelnet40_classes(request.folder)
    if absent:
        raise request.spec.missing(request.folder / absent[0])
    return sum(shape.train for shape in list_shapes(request.folder, 12, classes))


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
    names = [path.name for path in _class_folders(folder)] if classes is None else classes
    shapes = list_shapes(folder, views, names)
    if not shapes:
        raise InputError(f"{folder}: has no shapes; use a folder with one folder per class")
    first = shapes[0].files[0]
    side = len(decode_image(first, read_bounded(first, FILE_BYTES)))
    check_look(colour, size, side)
    digest = hashlib.sha256()

    def records(split: str) -> Records:
        chosen = [shape for shape in shapes if shape.train == (split == "train")]
        if not chosen:
            raise InputError(f"{folder}: has no {split} shapes; use a folder that has at least one")
        values = np.empty((len(chosen), views, 3 if colour == "rgb" else 1, size, size), np.float32)
        for row, shape in enumerate(chosen):
            for view, path in enumerate(shape.files):
                content = read_bounded(path, FILE_BYTES)
                digest.update(hashlib.sha256(content).digest())
                image = decode_image(path, content)
                if len(image) != side:
                    raise InputError(f"{path}: is {len(image)} pixels wide; use {side} like {first.name}")
                values[row, view] = prepared(image, colour=colour, size=size)
        return Records(view_blocks(values, count), np.array([shape.label for shape in chosen], np.int64))

    held = f"{each} of {views} views each, {colour}, {size} x {size} pixels"
    fitted = ("the set of classes was read off the folders' names",)
    return VerticalDataset(
        name=name,
        train=records("train"),
        test=records("test"),
        classes=len(names),
        partition=f"{count} clients, views: {held}",
        digests={f"{name}/images": digest.hexdigest()},
        fitted=fitted if classes is None else (),
    )


def list_shapes(folder: Path, views: int, classes: Sequence[str]) -> list[Shape]:
    """Return all shapes in `folder`, by class and name; `InputError` for what does not belong there."""
    shapes: list[Shape] = []
    budget = FILE_LIMIT
    for kind in _class_folders(folder):
        if kind.name not in classes:
            raise InputError(f"{kind}: is no class; use one of {', '.join(classes)}")
        parts = [kind / split for split in ("train", "test") if (kind / split).is_dir()]
        for inner in parts or [kind]:
            for name, files in _grouped(_listed(inner), views).items():
                # 51 of 256: a fifth
                tested = hashlib.sha256(f"{kind.name}/{name}".encode()).digest()[0] < 51
                train = inner.name == "train" if parts else not tested
                shapes.append(Shape(classes.index(kind.name), train, name, files))
                budget -= len(files)
        if budget < 0:
            raise InputError(f"{folder}: has more than {FILE_LIMIT} images; use {FILE_LIMIT} at most")
    return shapes


def decode_image(path: Path, content: bytes) -> Pixels:
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
                    raise InputError(
                        f"{path}: is {width} x {height} pixels; use square images, at most {SIDE_LIMIT} pixels wide"
                    )
                return np.asarray(image.convert("RGB"), np.uint8)
    except UnidentifiedImageError as error:
        raise InputError(f"{path}: is no PNG or JPEG image; use one") from error
    except (OSError, ValueError, SyntaxError, Warning, Image.DecompressionBombError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: is no PNG or JPEG image ({reason})") from error


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder; use one that holds a folder per class")
    return [inner for inner in _listed(folder) if inner.is_dir() and not inner.name.startswith(".")]


def _listed(folder: Path) -> list[Path]:
    with reading(folder):
        return sorted(folder.iterdir())


def _grouped(paths: Iterable[Path], views: int) -> dict[str, tuple[Path, ...]]:
    rings: dict[str, dict[int, Path]] = {}
    for path in paths:
        if path.name.startswith("."):
            continue
        match = VIEW_NAME.fullmatch(path.name)
        if match is None or not path.is_file():
            raise InputError(f"{path}: does not belong here; use an image SHAPE_VIEW.png or SHAPE_VIEW.jpg")
        view = int(match["view"])
        ring = rings.setdefault(match["shape"], {})
        if view in ring:
            raise InputError(f"{path}: is a second file for view {view} of {match['shape']!r}")
        ring[view] = path
    for shape, ring in rings.items():
        if len(ring) != views:
            raise InputError(f"{next(iter(ring.values()))}: shape {shape!r} has {len(ring)} views; use {views}")
    return {shape: tuple(ring[view] for view in sorted(ring)) for shape, ring in rings.items()}


ETH80_FILE = "eth80_16views_64x64.npz"
OBJECTS = 80
VIEWS = 16
SIDE = 64
CLASSES = 8
TRAIN_A_CLASS = 8
"""Of the 10 objects of a class, 8 train: 64 objects, a whole batch; 16 remain for the test."""


def read_eth80(request: DataRequest, *, colour: str = "rgb", size: int = SIDE) -> VerticalDataset:
    """Return ETH-80 (64 train and 16 test objects, 8 classes), pixels in [0, 1]; an object is never in both parts.

    "views": a record is an object, and each client holds 16 / clients neighbouring views of the ring, as channels:
    blocks (N, C 16 / clients, size, size). "rotations": clients hold one view each, evenly spaced, and the 16 / clients
    ways of turning the ring are records of their own: blocks (N 16 / clients, C, size, size). `colour` is "rgb" (C = 3)
    or "grey" (C = 1); `size` divides 64. Raises `InputError` for other values and for a missing or other file.
    """
    count = request.clients
    each = VIEWS // count
    turned = request.partition == "rotations"
    check_look(colour, size, SIDE)
    images, labels = _read(request.find(ETH80_FILE))
    views = prepared(images, colour=colour, size=size)

    def records(objects: LabelArray) -> Records:
        blocks = view_blocks(views[objects], count, turned=turned)
        return Records(blocks, np.repeat(labels[objects], each if turned else 1))

    held = f"one view each, {each} turns an object" if turned else f"{each} of the 16 ring views each"
    train, test = map(records, object_split(labels))
    return request.dataset(train, test, f"{held}, {colour}, {size} x {size} pixels; split by object")


def count_eth80(request: DataRequest) -> int:
    """Return how many objects train, or ways of turning them; raises `InputError` where the file is not there."""
    return request.counted(ETH80_FILE) * (VIEWS // request.clients if request.partition == "rotations" else 1)


def object_split(labels: LabelArray) -> tuple[LabelArray, LabelArray]:
    """Return the fixed train (8 a class) and test objects (2 a class) as positions in the file."""
    order = fixed_order(OBJECTS, seed=80)
    # an object's rank among those of its class, in the fixed order
    same = labels[order, None] == labels[order]
    rank = np.tril(same, -1).sum(axis=1)
    return order[rank < TRAIN_A_CLASS], order[rank >= TRAIN_A_CLASS]


def _read(path: Path) -> tuple[Pixels, LabelArray]:
    right = {"images": ("u", 1, (OBJECTS, VIEWS, SIDE, SIDE, 3)), "labels": ("i", 8, (OBJECTS,))}
    with reading(path):
        arrays = read_npz(path, {key: math.prod(shape) * size for key, (_, size, shape) in right.items()})
        for key, (kind, size, shape) in right.items():
            array = arrays[key]
            dtype = array.dtype
            if dtype.kind != kind or dtype.itemsize > size or array.shape != shape:
                raise ValueError(
                    f"{key} has shape {array.shape} of {dtype}; use {shape} of kind {kind!r}, {size} bytes each"
                )
        labels = arrays["labels"].astype(np.int64)
        counts = (labels == np.arange(CLASSES)[:, None]).sum(axis=1).tolist()
        if counts != [10] * CLASSES:
            raise ValueError(f"labels 0 .. {CLASSES - 1} have {counts} objects; use 10 each")
    return arrays["images"], labels
