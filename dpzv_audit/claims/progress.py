"""One claim on its way through the gate: what it wants done next, stage by stage, and the evidence so far.

A generator yields steps (what to compute) and is sent the results; who computes them, here or in worker processes, is
no concern of it. Each claim spends one alpha however many looks it takes, see `dpzv_audit.claims.stages`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from dpzv_audit.auditing.wealth import success_p_value
from dpzv_audit.claims.blocks import Block, attack_facts, score_facts, scores_digest, tradeoff_of, warnings_of
from dpzv_audit.claims.cache import evidence_key
from dpzv_audit.claims.evidence import Evidence, Look, Theory
from dpzv_audit.claims.load import PlacedClaim
from dpzv_audit.claims.looks import full_looks, sequential_looks
from dpzv_audit.claims.model import AttackClaim
from dpzv_audit.claims.sources import Source
from dpzv_audit.claims.stages import CUT_SHARE, Stage, split_of
from dpzv_audit.claims.verdicts import combined_p_value

THEORY = "theory"
Task = tuple[str, int]
"""(`THEORY`, 0) or (pool, number of the block)."""


@dataclass(frozen=True)
class Step:
    """Tasks that may run side by side; of all claims of a file those of the lowest `order` go first."""

    order: int
    tasks: tuple[Task, ...]
    doing: str


@dataclass(frozen=True)
class Done:
    """Results of a step's tasks, in order; fewer than asked where time was up, which `cut` then says."""

    results: tuple[Block | Theory, ...]
    cut: str = ""


Progress = Generator[Step, Done, None]


@dataclass
class ClaimRun:
    """One claim: its evidence grows look by look."""

    placed: PlacedClaim
    key: str
    seed: int
    source: Source | None = None
    theory: Theory | None = None
    looks: tuple[Look, ...] = ()
    rates: tuple[float, ...] = ()
    pools: dict[str, list[Block]] = field(default_factory=dict)
    """Blocks so far by pool; let go once the evidence is complete."""
    trials: int = 0
    missing: str = ""
    unkept: str = ""
    """Why the evidence cannot be kept for another run: what it depends on cannot be told; "" where it can."""
    complete: Evidence | None = None
    cached: bool = False
    seconds: float = 0.0

    @property
    def p_value(self) -> float:
        """Of the looks taken so far."""
        if self.complete is not None:
            return self.complete.p_value
        if isinstance(self.placed.claim, AttackClaim):
            from attacks import attack_named

            claim = self.placed.claim
            least = attack_named(claim.attack).least_success
            return success_p_value(self.rates, claim.success_at_most, least=least)
        return combined_p_value((look.p_value, look.weight) for look in self.looks if look.weight > 0)

    def evidence(self) -> Evidence:
        """What was found out so far."""
        if self.complete is not None:
            return self.complete
        source = self.source or Source()
        last = next((blocks for blocks in reversed(self.pools.values()) if blocks), [])
        attack = isinstance(self.placed.claim, AttackClaim)
        return Evidence(
            p_value=self.p_value,
            theory=self.theory or Theory(),
            looks=self.looks,
            rates=self.rates,
            attack=attack_facts(last) if self.rates else {},
            tradeoff=tradeoff_of(last) if self.looks and not attack else None,
            facts={**source.facts, **score_facts(last), "seed": self.seed},
            trials=self.trials,
            missing=self.missing,
            unaudited=source.unaudited,
            warnings=warnings_of(last) if self.looks and not attack else (),
            split=split_of(source.stages),
            scores=scores_digest(self.pools),
        )

    @property
    def evidence_key(self) -> str:
        """What identifies the evidence so far: `key`, or what it says where it was cut off or `key` does not cover it.

        A run that goes on draws more of the same, which is new evidence: what a cut one decided does not decide it.
        """
        evidence = self.evidence()
        if self.key and not self.unkept and not evidence.missing:
            return self.key
        return evidence_key({"claim": self.key, "so far": evidence.to_json()})

    def finish(self) -> None:
        """Settle the evidence and let the blocks go."""
        self.complete = self.evidence()
        self.pools = {}
        self.source = None


def progress_of(run: ClaimRun, *, alpha: float, stop: float, max_trials: int | None = None) -> Progress:
    """Yield what to do for a claim: account, then stage by stage until p <= `stop` or the stages end.

    `alpha` is the error rate of the file, for which full tests are designed. `max_trials` bounds trainings or runs.
    """
    source = run.source
    assert source is not None
    run.missing = "interrupted before anything was done"
    done = yield Step(0, ((THEORY, 0),), "accounting")
    if done.cut:
        run.missing = f"{done.cut} ended before anything was proved"
        return
    theory = done.results[0]
    assert isinstance(theory, Theory)
    run.theory = theory
    run.missing = "interrupted before any test" if source.stages else ""
    for place, stage in enumerate(source.stages):
        if place and run.p_value <= stop:
            break
        run.missing = f"interrupted in the {_named(stage)}"
        cut = yield from _stage(run, stage, place, alpha=alpha, stop=stop, max_trials=max_trials)
        run.missing = cut
        if cut:
            return
        if place + 1 < len(source.stages) and run.p_value > stop:
            run.missing = f"interrupted before the {_named(source.stages[place + 1])}"
    run.missing = ""


def _stage(
    run: ClaimRun, stage: Stage, place: int, *, alpha: float, stop: float, max_trials: int | None
) -> Generator[Step, Done, str]:
    """Draw the blocks of one stage and take its looks; return what cut it off, "" for nothing."""
    source = run.source
    assert source is not None
    blocks = run.pools.setdefault(stage.pool, [])
    cost = source.trials.get(stage.pool, 0)
    wanted, cut = stage.blocks, ""
    if max_trials is not None and cost and run.trials + cost * wanted > max_trials:
        wanted = max(0, (max_trials - run.trials) // cost)
        cut = f"the limit of {max_trials} trials ended the {_named(stage)}"
    end = len(blocks) + wanted
    while len(blocks) < end:
        # Where the test may stop the audit it is looked at after every block.
        size = 1 if stage.stops else end - len(blocks)
        tasks = tuple((stage.pool, number) for number in range(len(blocks), len(blocks) + size))
        done = yield Step(place + 1, tasks, f"{_named(stage)}, p = {run.p_value:.1g}")
        drawn = [block for block in done.results if not isinstance(block, Theory)]
        blocks += drawn
        run.trials += cost * len(drawn)
        if done.cut:
            cut = f"{done.cut} ended in the {_named(stage)}"
            break
        if stage.stops:
            _look(run, stage, bound=False)
            if run.p_value <= stop:
                _look(run, stage)
                return ""
    if blocks:
        _look(run, stage)
        claim = run.placed.claim
        full = CUT_SHARE if cut else stage.full
        if full and not isinstance(claim, AttackClaim):
            run.looks += tuple(
                full_looks(
                    blocks,
                    claim,
                    stage=f"{_named(stage)}, cut off" if cut else _named(stage),
                    share=full,
                    gaussian=stage.pool in source.gaussian,
                    alpha=alpha,
                    seed=run.seed,
                )
            )
    return cut


def _look(run: ClaimRun, stage: Stage, *, bound: bool = True) -> None:
    """Bring the e-process of the stage's pool up to date; it is one look, however often it is taken.

    Without `bound` for its p-value alone, as long as it may go on.
    """
    source, claim = run.source, run.placed.claim
    assert source is not None
    blocks = run.pools[stage.pool]
    if isinstance(claim, AttackClaim):
        run.rates = tuple(float(block["rate"]) for block in blocks)
        return
    share = sum(other.sequential for other in source.stages if other.pool == stage.pool)
    if not share or not blocks:
        return
    name = f"sequential, {stage.pool}"
    planned = sum(other.blocks for other in source.stages if other.pool == stage.pool)
    looks = sequential_looks(
        blocks,
        claim,
        stage=name,
        share=share,
        gaussian=stage.pool in source.gaussian,
        most_pairs=planned * source.pairs.get(stage.pool, 0),
        seed=run.seed,
        bound=bound,
    )
    run.looks = (*(look for look in run.looks if look.stage != name), *looks)


def _named(stage: Stage) -> str:
    """Return what a stage is called in words."""
    return stage.name if stage.name == stage.pool else f"{stage.name} test on {stage.pool}"


def carried_out(run: ClaimRun, *, alpha: float, stop: float) -> Evidence:
    """Return the evidence about a claim, everything computed here and now."""
    source = run.source
    assert source is not None
    steps = progress_of(run, alpha=alpha, stop=stop)
    done: Done | None = None
    try:
        while True:
            step = steps.send(done) if done is not None else next(steps)
            done = Done(tuple(result_of(source, task) for task in step.tasks))
    except StopIteration:
        run.finish()
        return run.evidence()


def result_of(source: Source, task: Task) -> Block | Theory:
    """Do one task."""
    pool, number = task
    return source.theory() if pool == THEORY else source.draw(pool, number)
