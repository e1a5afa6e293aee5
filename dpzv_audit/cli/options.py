"""Options that commands which train share, and how they become a method, a configuration and a data set."""

import csv
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from ..base.errors import InputError, unknown_name, with_options
from ..base.findings import Preset
from ..base.signals import TRIAL_SECONDS
from ..data import DATASETS, DataSpec, VerticalDataset, load, load_csv
from ..data.download import download
from ..data.spec import DATA_VARIABLE
from ..data.text import PretrainedTokenizer
from ..data.vertical import TaskName
from .flags import Count, TrainingFlags, flag, number_in, refuse
from .output import choose_device, progress_bars, showing_rehearsals

if TYPE_CHECKING:
    from mechanisms import MethodSpec, Training, TrainingConfig
    from mechanisms.core.defence import Defence

    from ..systems.trials import TrialStore

    Parts = tuple[MethodSpec, TrainingConfig, VerticalDataset]


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """Which data to train on, as the user said it: a data set by its name, or a CSV file; None where not given.

    Basics:
        dataset NAME: Data set; see `dpzv-audit list datasets`. The default is digits.
    Data:
        preset learned|paper: Default settings: tuned or as in the paper. `learned`, the default, is tuned to learn
            despite the noise (dpzv on digits); `paper` follows the paper.
        clients M: Number of clients. By default the data set's own.
        partition NAME: How features are split among clients. `dpzv-audit list datasets` names the ways.
        subset: Accept files that are only a part of the original. Some data sets allow it.
        data_options KEY=VALUE: Option of the data set, such as size=32. size belongs to eth80, length=96 to imdb. May
            be given several times.
        data_dir DIR: Folder with the original files. By default the one that DPZV_AUDIT_DATA names.
        download: Download missing files into --data-dir. Files without a plain URL are not fetched.
        csv FILE: Your table, instead of --dataset. Its first line names the columns.
        label COLUMN: With --csv: column to predict.
        task NAME: With --csv: `regression` if the label is a number. It goes with --system; the default is
            `classification`.
        classes A,B,...: With --csv: all possible labels. Without it they are read from the file, and no noise covers
            that.
        columns A,B,...: With --csv: columns of one client. Give it once per client, instead of --clients.
        categories A,B,...: With --csv: text columns, to be hashed. All others are numbers.
        scales A=X,...: With --csv: constants that divide columns.
        drop A,B,...: With --csv: columns to leave out.
        test_csv FILE: With --csv: separate file of test rows.
        separator C: With --csv: character between cells. ',' by default; others are ';' and tab.
    """

    dataset: str | None = None
    preset: Preset | None = None
    clients: Count | None = None
    partition: str | None = None
    subset: bool = False
    data_options: Annotated[list[str] | None, "--data-option"] = None
    data_dir: Path | None = None
    download: bool = False
    csv: Path | None = None
    label: str | None = None
    task: TaskName | None = None
    classes: str | None = None
    columns: list[str] | None = None
    categories: list[str] | None = None
    scales: list[str] | None = None
    drop: list[str] | None = None
    test_csv: Path | None = None
    separator: str | None = None

    @property
    def name(self) -> str:
        """Return the data set's name; `csv` for a file of the user's."""
        if self.csv is not None:
            return "csv"
        return "digits" if self.dataset is None else self.dataset

    @property
    def given(self) -> list[str]:
        """Return the fields that were given."""
        return [name for name, value in vars(self).items() if value not in (None, False)]

    @property
    def words(self) -> list[str]:
        """Return what was given as words of a command line."""
        words = []
        for name in self.given:
            value = getattr(self, name)
            option = "--data-option" if name == "data_options" else flag(name)
            for one in value if isinstance(value, list) else [value]:
                words += [option] if one is True else [option, str(one)]
        return words


Require = Callable[[dict[str, object]], dict[str, object]]
"""Maps the options of a method to those that an attack needs, or refuses."""
CSV_ONLY = ("label", "task", "classes", "columns", "categories", "scales", "drop", "test_csv", "separator")
NAMED_ONLY = ("dataset", "preset", "partition", "subset", "data_options", "data_dir", "download")


def _json_or_word(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def load_data(flags: DataFlags, *, quiet: bool = False, transformer: str | None = None) -> VerticalDataset:
    """Return the data that `flags` name, fetched first with `--download` (a progress bar on stderr unless `quiet`).

    Hints at what in a table usually keeps a model from learning go to stderr too, a line for each.

    Text is read by the tokenizer of `transformer`, a folder or a name on the Hugging Face hub, where it is given.
    Raises `InputError` in one line that names the flag or the file for a wrong one, for flags that do not go together
    and for training records of one class alone, and what `dpzv_audit.data.download.download` raises.
    """
    if flags.csv is None:
        data = _load_named(flags, quiet=quiet, transformer=transformer)
    else:
        data = _load_csv(flags.csv, flags)
        for hint in () if quiet else data.hints:
            print(f"dpzv-audit: hint: {with_options(hint, flag)}", file=sys.stderr)
    first = int(data.train.labels[0])
    if (data.train.labels == first).all():
        kind = f"are of class {first}" if data.values is None else f"have label {data.values[first]:g}"
        alike = f"all {len(data.train)} training records {kind}"
        two = "of at least two classes" if data.values is None else "with two labels at least"
        raise InputError(f"{data.name}: {alike}; use records {two}: there is nothing to learn")
    return data


def _load_named(flags: DataFlags, *, quiet: bool, transformer: str | None) -> VerticalDataset:
    refuse(flags.given, CSV_ONLY, f"goes with --csv FILE, not with data set {flags.name}")
    spec = DATASETS.named(flags.name, "dataset")
    known = [key for key in spec.options if key not in ("subset", "tokenizer")]
    if flags.data_options and not known:
        raise InputError(f"--data-option {flags.data_options[0]} does not apply: {spec.name} has no options")
    options: dict[str, Any] = parsed_settings(
        "data_option",
        flags.data_options,
        known,
        example="size=32",
        of=f"--data-option of {spec.name}",
        read=_word_or_count,
    )
    if flags.subset:
        if "subset" not in spec.options:
            raise InputError(f"--subset does not apply to {spec.name}, which is always complete")
        options["subset"] = True
    if transformer is not None and "tokenizer" in spec.options:
        if "vocabulary" in options:
            why = f"does not apply: the tokenizer of {transformer} has its own"
            raise InputError(f"--data-option vocabulary={options['vocabulary']} {why}")
        length = options.pop("length", spec.options["length"])
        options["tokenizer"] = PretrainedTokenizer(source=transformer, length=length)
    if spec.package:
        why = f"does not apply to {spec.name}, which is embedded in {spec.package}"
        refuse(flags.given, ("data_dir", "download"), why)
    if flags.download:
        _download(spec, flags, quiet=quiet)
    return load(
        flags.name,
        clients=flags.clients,
        partition=flags.partition,
        data_dir=flags.data_dir,
        **options,
    )


def _word_or_count(text: str) -> Any:
    value = _json_or_word(text)
    return value if type(value) in (int, str) else text


def _download(spec: DataSpec, flags: DataFlags, *, quiet: bool) -> None:
    if not spec.remote:
        origin = "" if spec.source is None else f": {spec.source.origin}"
        raise InputError(f"--download cannot fetch {spec.name}, for which there is no plain URL{origin}")
    folder = flags.data_dir or os.environ.get(DATA_VARIABLE)
    if not folder:
        raise InputError(f"--download needs --data-dir DIR, the folder to fetch into, or {DATA_VARIABLE} set")
    with progress_bars(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), quiet=quiet) as bars:

        def start(name: str, total: int) -> Callable[[int], None]:
            task = bars.add_task(name, total=total)
            return lambda done: bars.update(task, completed=done)

        download(spec.name, Path(folder), start)


def _load_csv(path: Path, flags: DataFlags) -> VerticalDataset:
    refuse(flags.given, NAMED_ONLY, "does not go with --csv FILE, give one of them")
    if flags.label is None:
        raise InputError("--label COLUMN is missing: --csv needs the column to predict")
    return load_csv(
        path,
        label=flags.label,
        clients=flags.clients,
        groups=[_names("columns", [text]) for text in flags.columns] if flags.columns else None,
        categories=_names("categories", flags.categories),
        scales=dict(map(_scale, _names("scales", flags.scales))),
        classes=None if flags.classes is None else _names("classes", [flags.classes]),
        drop=_names("drop", flags.drop),
        test=flags.test_csv,
        separator="," if flags.separator is None else flags.separator,
        task=flags.task or "classification",
    )


def _names(flag: str, texts: Iterable[str] | None) -> list[str]:
    """Return the names in lists such as `a,b` or `"with, comma",b`."""
    names = []
    for text in texts or ():
        row = [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]
        if not row or not all(row):
            kind, example = ("labels", "no,yes") if flag == "classes" else ("column names", "age,region")
            raise InputError(f"use {kind} with commas between them, such as {example}", flag, text)
        names += row
    return names


def _scale(item: str) -> tuple[str, float]:
    name, separator, constant = item.rpartition("=")
    value = number_in(constant)
    if not separator or not 0.0 < value < float("inf"):
        raise InputError("use COLUMN=X with X above 0, such as age=100", "scales", item)
    return name.strip(), value


@dataclass(frozen=True)
class TranscriptFlags:
    """A recorded training to attack: its folder, the file with its labels, and files with features as `M=FILE`."""

    folder: Path
    labels: Path | None
    features: Sequence[str] = ()

    def by_client(self, clients: int) -> dict[int, Path]:
        """Return the files with features by client, the first where none is named; `InputError` for a wrong one."""
        files: dict[int, Path] = {}
        for text in self.features:
            number, separator, name = text.partition("=")
            client, name = (int(number), name) if separator and number.isdecimal() else (1, text)
            if not 1 <= client <= clients:
                raise InputError(f"use M=FILE with M in 1 to {clients}", "features", text)
            if client in files:
                raise InputError(f"client {client} has two files; give one", "features", text)
            files[client] = Path(name)
        return files


def choose(
    training: TrainingFlags,
    data: DataFlags,
    *,
    require: Require = dict,
    claims: Sequence[str] = ("epsilon", "calibration"),
    quiet: bool = False,
    seed: int = 0,
    device: str = "cpu",
    trials: "TrialStore | None" = None,
    seconds: float = TRIAL_SECONDS,
    recorded: TranscriptFlags | None = None,
) -> "Training":
    """Return the training that the shared options choose; `InputError` in one line where one is wrong.

    `claims` are the options that say nothing where no noise is added. `quiet` leaves out the progress bar of a
    download. A system is rehearsed with `seed`; `trials` is where its trainings are carried out and kept, `seconds`
    what each may take.
    A `recorded` training takes the place of all of these.
    """
    from mechanisms import Training

    if recorded is not None:
        method, config, dataset = _of_transcript(recorded, require)
    elif training.system is not None:
        system = _of_system(training, data, require, quiet=quiet, seed=seed, trials=trials, seconds=seconds)
        method, config, dataset = system
    else:
        method, config, dataset = _of_method(training, data, require, claims, quiet=quiet)
    return Training(method=method, config=config, dataset=dataset, seed=seed, device=choose_device(device))


def _of_method(
    training: TrainingFlags,
    data: DataFlags,
    require: Require,
    claims: Sequence[str],
    *,
    quiet: bool,
) -> "Parts":
    """Configure a method and load its data; `InputError` in one line where that cannot be."""
    spec, chosen = _given(training)
    if data.task == "regression":
        raise InputError(f"method {spec.name} learns classes; use --system for a number", "task", data.task)
    if "dp" in spec.config.model_fields and chosen.get("dp", "none") == "none":
        why = f"does not apply to method {training.method} with dp none, which adds no noise"
        refuse(training.given, claims, f"{why}: give --set dp=embedding, embedding-batch or gradient as well")
    options = require(chosen)
    tuned = options.get("transformer") is not None
    from mechanisms.presets import dataset_defaults

    usual = dataset_defaults(data.name, spec, transformer=tuned, preset=data.preset or "learned")
    config = spec.configure(**usual | options)
    dataset = load_data(data, quiet=quiet, transformer=config.transformer)
    config.steps_per_pass(len(dataset.train))  # a batch is at most all records
    return spec, config, dataset


def _of_system(
    training: TrainingFlags,
    data: DataFlags,
    require: Require,
    *,
    quiet: bool,
    seed: int,
    trials: "TrialStore | None",
    seconds: float,
) -> "Parts":
    """Load a system of the user's own and rehearse it on the data; `InputError` in one line where that cannot be."""
    from ..systems.run import prepared
    from ..systems.stated import data_of, system_at

    own = [*training.given, *(["set"] if training.settings else [])]
    refuse([*own, *data.given], [*own, "preset"], "does not apply to --system, whose settings are its own")
    system = system_at(training.system or "", seconds)
    if trials is not None:
        system = replace(system, trials=trials)
    require({"top_model": system.top_model})
    beside = None if data.given else data_of(system)
    # Digits in two blocks are what there is without any data.
    dataset = beside or load_data(data if data.given else DataFlags(clients=2), quiet=quiet)
    with showing_rehearsals(quiet=quiet):
        method, config = prepared(system, dataset, seed)
    return method, config.model_copy(update=defences_given(training)), dataset


def _of_transcript(recorded: TranscriptFlags, require: Require) -> "Parts":
    """Load a recorded training and its labels; `InputError` in one line where that cannot be."""
    from ..systems.features import ClientFeatures
    from ..systems.labels import read_labels
    from ..systems.recorded import labelled, method_of_transcript
    from ..systems.transcript import load

    if recorded.labels is None:
        raise InputError("--labels FILE is missing: --transcript needs the true labels, which score the attack")
    transcript = load(recorded.folder)
    require({"top_model": transcript.manifest.top_model})
    labels = read_labels(recorded.labels, transcript.records, transcript.manifest.classes)
    files = recorded.by_client(transcript.clients)
    features = {client: ClientFeatures.read(path, transcript.records) for client, path in files.items()}
    method = method_of_transcript(transcript, features)
    return method, method.configure(), labelled(transcript, labels, recorded.labels, features)


def asks(training: "Training", adversary: str) -> bool:
    """Return whether this adversary may ask about a batch again: a client of a method that sends scalars."""
    return adversary == "client" and training.method.downlink != "gradient"


def configure(training: TrainingFlags) -> "tuple[MethodSpec, TrainingConfig]":
    """Resolve method and configuration where no data set is trained on; `InputError` in one line where one is wrong."""
    spec, options = _given(training)
    return spec, spec.configure(**options)


def _given(training: TrainingFlags) -> "tuple[MethodSpec, dict[str, object]]":
    """Return the method and the settings that flags and --set give; `InputError` for a flag that does not apply."""
    from mechanisms import method_named

    spec = method_named(training.method or "")
    flags = training.given
    known = spec.config.model_fields
    for key in flags:
        if key not in known:
            why = f"does not apply to method {spec.name}, which adds no noise by itself"
            if "dp" in known:
                own = "clip is --set dp_clip" if key == "clip" else "noise is --set dp_sigma"
                why += f"; its {own}, on what --set dp names"
            raise InputError(f"{flag(key)} {why}")
    others = [key for key in known if key != "defences"]
    return spec, flags | parsed_settings("set", training.settings, others, flags) | defences_given(training)


def defences_given(training: TrainingFlags) -> "dict[str, tuple[Defence, ...]]":
    """Return the setting `defences` that flags give, {} for none; `InputError` for an unknown one, or a setting."""
    from mechanisms.defences import DEFENCES, defence_of

    names = training.defence or []
    if not names:
        if training.defence_settings:
            raise InputError("goes with ‹defence› NAME alone", "defence_set", training.defence_settings[0])
        return {}
    places: dict[str, tuple[str, str]] = {}
    for name in names:
        # Names are as `parsed_settings` spells keys.
        prefix = f"{name.replace('-', '_')}." if len(names) > 1 else ""
        fields = DEFENCES.named(name, "defence").settings.model_fields
        places |= {f"{prefix}{key}": (name, key) for key in fields if key != "name"}
    settings: dict[str, dict[str, object]] = {name: {} for name in names}
    values = parsed_settings("defence_set", training.defence_settings, places, example="epsilon=1")
    for spelled, value in values.items():
        name, key = places[spelled]
        settings[name][key] = value
    return {"defences": tuple(defence_of(name, **settings[name]) for name in names)}


def parsed_settings(
    given_by: str,
    settings: Iterable[str] | None,
    known: Collection[str],
    flags: Collection[str] = (),
    *,
    example: str = "momentum=0.9",
    of: str = "",
    read: Callable[[str], Any] = _json_or_word,
) -> dict[str, object]:
    """Return `KEY=VALUE` pairs of an option; a value is read by `read`: as JSON where it is JSON, else a word.

    Raises `InputError`, with `example`, for a key that is not `known` (`of` what), that one of `flags` gives
    already, or that comes twice.
    """
    values = {}
    for item in settings or ():
        name, separator, text = item.partition("=")
        key = name.replace("-", "_")
        if not separator or not key:
            raise InputError(f"use KEY=VALUE, such as {example}", given_by, item)
        if key not in known:
            raise unknown_name(of or given_by, key, known)
        if key in flags:
            raise InputError(f"‹{given_by}› {item} contradicts ‹{key}›, give one of them")
        if key in values:
            raise InputError(f"‹{given_by}› gives {key} twice, give it once")
        values[key] = read(text)
    return values
