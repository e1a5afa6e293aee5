"""`dpzv-audit attack`: train a method, attack it, audit it, account for it, and write the report."""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from reports.head import short_metric

from ..base.errors import AuditError, InputError, check_names
from ..base.findings import FALSE_ALARM, SERVERS, STRONGEST
from ..base.rounding import p_value
from ..results import AttackResult, AttacksResult
from ..runs import RESULT_FILE, json_text, origin_of
from .flags import NOT_BOTH, Count, Probability, RunFlags, TrainingFlags, Whole, flags_given, refuse, takes
from .heartbeat import paused
from .options import DataFlags, TranscriptFlags, asks, choose, parsed_settings
from .output import Answered, environment_of_run, print_table, save, table_of
from .summary import at_least, refuse_failed, table_from
from .trials import PlannedFlags, kept_attacks, kept_trials

if TYPE_CHECKING:
    from attacks import AttackSetting, AttackSpec
    from mechanisms import Training

    from ..evidence.choosing import Attack
    from ..evidence.planning import AttacksPlan, Pace

ALL = "all"
"""The name under which every attack that applies is mounted."""
TARGET = "target"
"""The option of attacks that names whom they attack."""
USUAL = "label_direct"
"""The attack on a built-in method where none is named."""
OF_A_SYSTEM = {"trials": 8, "shadows": 16}
"""Trainings of each attack on a system, and shadow trainings of those on membership, where `all` are mounted: each is a
training of the user's own, which may take long."""


@dataclass(frozen=True, kw_only=True)
class MountFlags:
    """How attacks are mounted; None where not given.

    Basics:
        trials N: Trainings with different seeds, run together. By default the attack's own number (often 64), or fewer
            if trainings are long.
    Attacker:
        adversary NAME: Who attacks; see `dpzv-audit list adversaries`. By default the attack's first adversary (often
            client).
        client M: Client that attacks. By default the best of all clients in a trial run. With colluding-clients, give
            it once per client; by default all attack. With server, the client whose features are attacked.
        attack_settings KEY=VALUE: Option of the attack. May be given several times.
        queries Q: Times that the client asks about each batch. It asks in its first pass over the data; by default as
            often as the attack says.
    Audit:
        self_check: Only run the controls; exit with 3 if one fails. All together have a false-alarm rate of 1e-3. With
            --attack all or strongest, the controls of every attack that applies.
        alone: Leave out the attacks for comparison. For label_direct on noised scalars these are the strongest other
            attack on the same system, and label_direct on split learning, which adds no noise.
        runs N: Audit runs with canary, and as many without (0: none). By default 2000, or fewer if trainings are long.
        chunk N: Audit runs done at once. Half of them have the canary; fewer need less memory.
        confidence X: Confidence of each bound. It holds for each interval too; between 0 and 1.
    """

    adversary: str | None = None
    client: list[int] | None = None
    attack_settings: Annotated[list[str] | None, "--attack-set"] = None
    queries: Count | None = None
    trials: Count | None = None
    self_check: bool = False
    alone: bool = False
    runs: Whole | None = None
    chunk: Count = 256
    confidence: Probability = 0.95

    def clients(self, adversary: str, count: int, *, attacked: bool = False) -> tuple[int, ...]:
        """Return the clients that are named, one of an adversary that is one, or who is `attacked` by another.

        Raises `InputError` where they cannot look.
        """
        from attacks.core.setting import BY_CLIENTS, COLLUDING

        clients = tuple(dict.fromkeys(self.client or ()))
        if clients and adversary not in BY_CLIENTS and not attacked:
            raise InputError(f"goes with {', '.join(BY_CLIENTS)}, not with the {adversary}", "client", clients[0])
        if adversary != COLLUDING and len(clients) > 1:
            raise InputError(f"use one client, not {len(clients)}: several are {COLLUDING}", "client", clients[-1])
        for number in clients:
            if number not in range(1, count + 1):
                raise InputError(f"use one of 1 to {count}", "client", number)
        return clients

    def target(self, spec: "AttackSpec", adversary: str, count: int, own: dict[str, object]) -> dict[str, object]:
        """Return an attack's `own` options with the client that is named as the one whom another adversary attacks.

        Raises `InputError` where they name another.
        """
        from attacks.core.setting import BY_CLIENTS

        if adversary in BY_CLIENTS or TARGET not in spec.setup.options or not self.client:
            return own
        (client,) = self.clients(adversary, count, attacked=True)
        if str(own.get(TARGET, client)) != str(client):
            raise InputError(f"contradicts ‹attack_set› {TARGET}={own[TARGET]}, give one of them", "client", client)
        return {**own, TARGET: client}

    def settings(self, known: Collection[str]) -> dict[str, object]:
        """Return the options of attacks that are given; `InputError` for one that is not `known`."""
        return parsed_settings("attack_set", self.attack_settings, known)

    def facts(self, attack: str, **more: object) -> dict[str, object]:
        """Return what the work on `attack` depends on beside its training, for parts that are kept."""
        names = ("adversary", "client", "queries", "trials")
        return {"attack": attack, **{name: getattr(self, name) for name in names}, **more}


@takes
def attack(
    *,
    ctx: typer.Context,
    training: TrainingFlags,
    attack: str | None = None,
    data: DataFlags,
    transcript: Path | None = None,
    labels: Path | None = None,
    features: list[str] | None = None,
    mount: MountFlags,
    how: PlannedFlags,
    resume: bool = False,
    run: RunFlags,
    output: Answered,
) -> None:
    """Attack a training, audit its claim and write a report.

    Example: dpzv-audit attack --method dpzv --attack label_direct

    Example: dpzv-audit attack --system our_vfl:train --attack all

    Basics:
        attack NAME: Attack, all or strongest (dpzv-audit list attacks). `all` mounts all that apply, which share
            one error rate. `strongest` is the one that does the most harm in a trial run of all that apply. By default
            label_direct; with --system or --transcript, all.
    Data:
        transcript DIR: Recorded training, instead of --method. It needs --labels, and cannot be repeated;
            docs/reference/transcript.md describes the folder.
        labels FILE: With --transcript: true labels, by record id. CSV with a column label, one number per line, or
            .npy. They score the attack, which gets only those that its threat model grants.
        features FILE: With --transcript: features of client 1. A row for each record id: CSV with column names, or
            .npy. They score what the server learns. 2=FILE gives those of client 2; may be given several times.
    Execution:
        resume: Continue an interrupted or failed run. Finished attacks, trial runs and chunks of the audit are
            kept; with --system every training. For one attack on a method also its trainings with its negative control,
            the positive control, and frozen clients.
    """
    of_system = training.system is not None
    if attack is None:
        attack = ALL if of_system or transcript is not None else USUAL
    flags = flags_given(ctx)
    if of_system:
        refuse(flags, ("method",), NOT_BOTH)
    recorded = None
    if transcript is not None:
        recorded = TranscriptFlags(transcript, labels, features or ())
        refuse(flags, sorted(set(flags) - OF_A_TRANSCRIPT), NOT_WITH_A_TRANSCRIPT)
        mount = replace(mount, trials=1)
    elif labels is not None:
        raise InputError("goes with ‹transcript› DIR alone", "labels", str(labels))
    elif features:
        raise InputError("goes with ‹transcript› DIR alone", "features", features[0])
    if mount.self_check:
        why = "does not go with --self-check, which runs only the controls, at its own error rate, and writes no folder"
        refuse(flags, ("max_minutes", "runs", "chunk", "confidence", "out", *(() if of_system else ("resume",))), why)
    if attack in (ALL, STRONGEST):
        refuse(flags, ("runs", "chunk"), f"goes with one attack, not with --attack {attack}")
    if attack == STRONGEST:
        refuse(flags, ("transcript",), f"goes with --attack {ALL}, not {STRONGEST}: one training allows no trial run")
    with kept_trials(how, training.system, run.out, resume=resume and of_system) as kept:
        chosen = partial(
            choose,
            training,
            data,
            quiet=output.quiet,
            seed=run.seed,
            device=run.device,
            trials=kept,
            seconds=how.seconds,
            recorded=recorded,
        )
        # What is kept of a system is its trainings, and a recorded one takes no time.
        again = resume if recorded is None and not of_system else None
        audit = ("dpzv-audit", "audit", "system", training.system or "", *data.words)
        planner = Planner(how.pace() if of_system else None, output, mount.confidence, audit)
        if attack in (ALL, STRONGEST):
            _mount_all(attack, chosen, mount, again, planner, run, output)
        else:
            _mount_one(attack, chosen, mount, again, planner, run, output)


@dataclass(frozen=True)
class Planner:
    """Plans attacks on a system within its `pace`, and says the plan; without one nothing is planned."""

    pace: "Pace | None"
    output: Answered
    confidence: float
    audit: tuple[str, ...]

    def game_command(self, adversary: str) -> str:
        """Return the command that plays the coin game of an `adversary`."""
        return shlex.join([*self.audit, *([] if adversary == "client" else ["--adversary", adversary])])

    def __call__(self, attacks: "Sequence[Attack]", **more: Any) -> "AttacksPlan":
        """Return the plan of attacks that apply; see `evidence.planning.plan_attacks`."""
        from ..evidence.planning import plan_attacks

        assert self.pace is not None
        plan = plan_attacks(attacks, self.pace, confidence=self.confidence, **more)
        for line in plan.lines:
            self.output.note(f"plan: {line}")
        return plan

    def of_one(self, spec: "AttackSpec", setting: "AttackSetting") -> "AttackSetting":
        """Return the setting of an attack with as many trainings as there is time for."""
        from ..evidence.choosing import lacking, possible

        if self.pace is None or lacking(spec, possible(spec, setting)[0]) is not None:  # to mount it says why
            return setting
        return self([(spec, setting)]).mounted[0][1]

    def of_strongest(self, attacks: "Sequence[Attack]") -> "Sequence[Attack]":
        """Return the attacks of which the strongest is sought, with as many trainings as there is time for."""
        from ..evidence.choosing import possible, unfit
        from ..evidence.planning import trainings_of_strongest

        fit = [(spec, setting) for spec, setting in attacks if unfit(spec, possible(spec, setting)[0]) is None]
        if self.pace is None or not fit:
            return attacks
        return self(fit, made=trainings_of_strongest).mounted

    def lasting(self, what: str) -> AbstractContextManager[None]:
        """End the block where the time is over before `what` is done."""
        return nullcontext() if self.pace is None else self.pace.lasting(what)


def _mount_one(
    name: str,
    chosen: "Callable[..., Training]",
    mount: MountFlags,
    resume: bool | None,
    planner: Planner,
    run: RunFlags,
    output: Answered,
) -> None:
    """Mount an attack on a training, audit that, and report what is shown beside it; None as in `_mount_all`."""
    from attacks import AttackSetting, attack_named
    from attacks.core.setting import BY_CLIENTS
    from attacks.core.spec import DoesNotApply

    from ..base.executor import alongside
    from ..evidence.beside import SHOWN_BESIDE, stands_beside, with_beside
    from ..evidence.bounding import AuditPlan, affordable_runs, affordable_trials
    from ..evidence.training import attack_result

    spec = attack_named(name)
    adversary = spec.adversaries[0] if mount.adversary is None else mount.adversary
    options = mount.settings(spec.setup.options)
    with planner.lasting("the rehearsal"):
        try:
            attacked = chosen(require=partial(spec.check, adversary))
        except DoesNotApply as error:
            # A system or a transcript, which are not resumed, give their server alone; a method has options.
            cure = ", and your server has a top model; ‹attack› all mounts every attack that applies"
            if resume is not None:
                needed = " ".join(f"‹set› {key}={str(value).lower()}" for key, value in spec.needs.requires.items())
                cure = f"; use {needed}, or ‹attack› all for every attack that applies"
            raise DoesNotApply(f"{error.words}{cure}") from error
    method = attacked.method
    count = attacked.dataset.clients
    options = mount.target(spec, adversary, count, options)
    if options.get("estimator", "ridge") != "ridge" and method.downlink == "gradient":
        raise InputError(
            f"but {method.name} sends gradients: there is nothing to estimate",
            "attack_set",
            f"estimator={options['estimator']}",
        )
    may_ask = asks(attacked, adversary)
    if mount.queries is not None and mount.queries > 1 and not may_ask:
        raise InputError("use 1: only a curious client of a method that sends scalars asks", "queries", mount.queries)
    trials = mount.trials or spec.setup.trials
    if mount.trials is None and method.capabilities.simulated:
        trials = affordable_trials(trials, attacked.rounds)
    setting = AttackSetting.of(
        attacked,
        adversary=adversary,
        clients=() if TARGET in options and adversary not in BY_CLIENTS else mount.clients(adversary, count),
        queries=mount.queries or (spec.setup.queries if may_ask else 1),
        trials=trials,
        confidence=mount.confidence,
        options=options,
    )
    if mount.self_check:
        _self_check(output, [(spec, setting)])
        return
    scalars = method.capabilities.simulated and method.downlink != "gradient"
    shown = name == SHOWN_BESIDE and scalars and method.protection(setting.config).draws and not mount.alone
    beside = {}
    with ExitStack() as held:
        store = None
        if resume is not None:
            facts = mount.facts(name, adversary=adversary, trials=trials, options=options)
            store = held.enter_context(kept_attacks(setting, run.out, facts, "step", resume=resume))
        with planner.lasting("the attack"), ExitStack() as behind:
            setting = planner.of_one(spec, setting)
            answer = None
            if shown:
                with paused():  # and before there are bars, so that the other process may be a fork
                    answer = behind.enter_context(alongside(stands_beside, name, setting, mount.confidence, store))
            reporter = behind.enter_context(output.progress())
            runs = affordable_runs(setting.rounds) if mount.runs is None else mount.runs
            plan = AuditPlan(runs=runs, chunk=mount.chunk, confidence=mount.confidence, reporter=reporter)
            result = attack_result(spec, setting, plan, store)
            if answer is not None:
                stage = reporter("attacks beside it", 1)
                beside = answer()
                stage(1)
                result = with_beside(result, [cell for cell, _ in beside.values()])
        files = _files_of({folder: other for folder, (_, other) in beside.items()})
        saved = save(result, run, "attack", result.method, result.dataset, name, files=files)
        output.finish(saved, table_from("attack", result), source=attacked.method.capabilities.draft)


def _mount_all(
    name: str,
    chosen: "Callable[..., Training]",
    mount: MountFlags,
    resume: bool | None,
    planner: Planner,
    run: RunFlags,
    output: Answered,
) -> None:
    """Mount every attack that applies to the training as it is configured, or the one whose pilot does most harm.

    What was done is kept until all are, and taken up with `resume`; nothing is where that is None.
    """
    from attacks import ATTACKS, AttackSetting
    from attacks.core.setting import ALONE, BY_CLIENTS, abilities

    from ..evidence.attacks import attacks_result
    from ..evidence.bounding import AuditPlan
    from ..evidence.choosing import strongest
    from ..evidence.training import attacked_result

    adversary = "client" if mount.adversary is None and name == STRONGEST else mount.adversary
    specs = [ATTACKS[attack] for attack in ATTACKS]
    reach = dict.fromkeys(by for spec in specs for by in spec.adversaries)
    if adversary is not None:
        check_names("adversary", [adversary], reach)
        reach = dict.fromkeys(abilities(adversary) if name == STRONGEST else [adversary])
    known = dict.fromkeys(key for spec in specs for key in spec.setup.options)
    own = mount.settings(known)
    with planner.lasting("the rehearsal"):
        attacked = chosen()
    usual = {} if attacked.method.capabilities.simulated else OF_A_SYSTEM
    if mount.self_check and usual:
        usual = {**usual, "trials": max(FEWEST_TRIALS, usual["trials"])}
    options = {**{key: value for key, value in usual.items() if key in known}, **own}
    base = AttackSetting.of(attacked, confidence=mount.confidence)
    count = attacked.dataset.clients
    clients = mount.clients("client" if adversary is None else adversary, count, attacked=adversary in SERVERS)
    # One that is named, and nothing else, is one that looks alone.
    look = ALONE if adversary is None else BY_CLIENTS

    def setting(spec: "AttackSpec", by: str) -> "AttackSetting":
        return replace(
            base,
            adversary=by,
            clients=clients if by in look else (),
            queries=(mount.queries or spec.setup.queries) if asks(attacked, by) else 1,
            trials=mount.trials or usual.get("trials", spec.setup.trials),
            options=mount.target(
                spec, by, count, {key: value for key, value in options.items() if key in spec.setup.options}
            ),
        )

    mounted = [(spec, setting(spec, by)) for spec in specs for by in spec.adversaries if by in reach]
    if mount.self_check:
        _self_check(output, mounted)
        return
    with ExitStack() as held:
        store = None
        if resume is not None:
            facts = mount.facts(name, adversary=adversary, options=own)
            store = held.enter_context(kept_attacks(base, run.out, facts, "attack", resume=resume))
        if name == STRONGEST:
            with output.progress() as reporter, planner.lasting("the attack"):
                spec, worst, tried = strongest(planner.of_strongest(mounted), reporter, store)
                plan = AuditPlan(runs=0, confidence=mount.confidence, reporter=reporter)
                strong = attacked_result(spec, worst, plan, tried, store)
            saved = save(strong, run, "attack", strong.method, strong.dataset, STRONGEST)
            output.finish(saved, table_from("attack", strong), source=attacked.method.capabilities.draft)
            return
        with output.progress() as reporter:
            planned = None if planner.pace is None else planner
            result, each = attacks_result(mounted, base, reporter, store, planned, planner.game_command)
    settings = {"trials": mount.trials or usual.get("trials"), **options}
    result = result.model_copy(update={"attack_setting": {k: v for k, v in settings.items() if v is not None}})
    kept = save(result, run, "attack", result.method, result.dataset, ALL, files=_files_of(each))
    reasons = {f"{cell.attack} ({cell.adversary})": cell.reason for cell in result.attacks if cell.reason}
    output.finish(kept, _table_of_all(result), details=_not_mounted(reasons), source=attacked.method.capabilities.draft)
    refuse_failed(result.negative_controls)


def _files_of(results: Mapping[str, AttackResult]) -> dict[str, str | bytes]:
    """Return the files of further results by their folders: each as JSON, and its report."""
    from reports.content import report_content
    from reports.render import to_html

    files: dict[str, str | bytes] = {}
    for folder, result in results.items():
        files[f"{folder}/{RESULT_FILE}"] = json_text(result)
        files[f"{folder}/report.html"] = to_html(report_content(result, origin=origin_of(environment_of_run())))
    return files


def _three(value: float | None) -> str:
    """Return a success at three decimals; what is missing is `none`."""
    return "none" if value is None else f"{value:.3f}"


def _table_of_all(result: AttacksResult) -> Table:
    """Return the attacks that were mounted, the largest first."""
    kinds = {"success": "number", "no attack": "number", "control": "number", "epsilon": "number"}
    recorded = any(cell.permutation_p is not None for cell in result.attacks)
    if recorded:  # nothing is trained again: a test by permutation stands in the place of controls and games
        kinds = {"success": "number", "no attack": "number", "permutation p": "number"}
    title = f"{result.method}, {result.dataset}: the attacks, the worst first"
    table = table_of({"attack, adversary": "text", **kinds, "metric": "name"}, title)
    for cell in result.attacks:
        if cell.state == "measured":
            metric = cell.metric or ""
            shown = [_three(value) for value in (cell.success, cell.reference)]
            if recorded:
                shown.append("none" if cell.permutation_p is None else p_value(cell.permutation_p))
            else:
                shown += [_three(cell.control), at_least(cell.certified)]
            table.add_row(f"{cell.attack}, {cell.adversary}", *shown, short_metric(metric))
    return table


OF_A_TRANSCRIPT = frozenset(
    (
        *("transcript", "labels", "features", "attack", "adversary", "client", "attack_set", "confidence"),
        *("self_check", "seed", "out", "device", "json", "quiet", "verbose"),
    )
)
"""Options of an attack on a recorded training."""
NOT_WITH_A_TRANSCRIPT = "does not go with --transcript: what was recorded is neither trained nor repeated"

FEWEST_TRIALS = 16
"""Trainings of a self-check: over fewer no bet could show, at its error, an attack that is right half too often."""


def _self_check(output: Answered, mounted: "Sequence[tuple[AttackSpec, AttackSetting]]") -> None:
    """Mount attacks for their controls alone, print them, and fail where one misses what it must give.

    All negative controls share `FALSE_ALARM`. A positive one is judged by its value, which a correct build puts far
    above what it must reach (`attacks.core.controls.Control`). Of several attacks those that do not apply are left out.
    """
    from attacks.core.spec import DoesNotApply

    from ..evidence.choosing import lacking, possible
    from ..statistics.panel import Panel

    for _, setting in mounted:
        if setting.trials < FEWEST_TRIALS and setting.method.capabilities.repeatable:
            rule = f"use {FEWEST_TRIALS} or more with --self-check: fewer trainings cannot show a fault"
            raise InputError(rule, "trials", setting.trials)
    several = len(mounted) > 1
    reasons = {}
    apply = []
    for spec, setting in mounted:
        able = possible(spec, setting)[0] if several else setting
        why = lacking(spec, able) if several else None
        if why is None:
            apply.append((spec, able))
        else:
            reasons[f"{spec.name} ({setting.adversary})"] = why
    each = Panel(apply).level(FALSE_ALARM)
    checks = []
    failures = []
    for spec, setting in apply:
        try:
            controls = spec.mount(replace(setting, confidence=1.0 - each)).controls
        except DoesNotApply as error:
            if not several:
                raise
            reasons[f"{spec.name} ({setting.adversary})"] = error.words
            continue
        title = f"{spec.name} by the {setting.adversary}" if several else spec.name
        failed = [name for name, control in controls.items() if not control.holds]
        if failed:
            failures.append(f"{title} fails its own controls: {', '.join(failed).replace('_', ' ')}")
        facts = {"attack": spec.name, "adversary": setting.adversary, "method": setting.method.name}
        facts |= {"dataset": setting.dataset.name}
        checks.append({**facts, "controls": controls, "failed": failed, "holds": not failed})
        print_table(output.console, table_from("self_check", title, controls))
    if not checks:
        raise InputError("use a training to which one applies: no attack does, so no control ran", "attack", ALL)
    shared = {"false_alarm": FALSE_ALARM, "false_alarm_each": each}
    if several:
        together = {"attacks": checks, "not_mounted": reasons, "holds": not failures, **shared}
        output.result({"schema": "dpzv-audit/self-checks/1", **together})
    else:
        output.result({"schema": "dpzv-audit/self-check/1", **checks[0], **shared})
    for text in _not_mounted(reasons):
        output.say(text)
    output.say(f"A correct build fails a negative control with probability at most {FALSE_ALARM:g}, all together.")
    if failures:
        raise AuditError(f"{'; '.join(failures)}; none of its numbers can be trusted")


def _not_mounted(reasons: Mapping[str, str]) -> list[str]:
    """Return lines on attacks that do not apply, by reason."""
    names: dict[str, list[str]] = {}
    for attack, reason in reasons.items():
        names.setdefault(reason, []).append(attack)
    return [*(["Not mounted:"] if names else []), *(f"{', '.join(of)}: {reason}" for reason, of in names.items())]
