"""Runs the built-in method that a configuration is of: tests of arithmetic name a method by its configuration."""

import torch

from mechanisms import METHODS
from mechanisms import train as train_method
from mechanisms.core.channel import ByteLedger
from mechanisms.core.config import TrainingConfig
from mechanisms.core.context import RunContext
from mechanisms.core.models import default_architectures
from mechanisms.core.replicas import FusedMLP, ModuleEvaluator


def method_of(config):
    """The first built-in method with configurations of this type."""
    return next(method for method in METHODS.values() if method.config is type(config))


def new_run(data, config, **context):
    """A run that has not begun."""
    return method_of(config).start(data, config, RunContext(**context))


def train(data, config, **options):
    """See `mechanisms.train`; fields of the context are among the options."""
    context = RunContext(**{key: options.pop(key) for key in RunContext.__annotations__ if key in options})
    return train_method(method_of(config), data, config, context, **options)


def evaluator_by(strategy, architecture):
    """The evaluator of `architecture` by `strategy`, whatever the rule would choose: `fused`, `vmap` or `loop`."""
    return FusedMLP(architecture) if strategy == "fused" else ModuleEvaluator(architecture, together=strategy == "vmap")


def module_of(architecture, parameters, replica):
    """The replica at place `replica` of the stack as an ordinary torch module with its own copy of the parameters."""
    module = architecture.module().to(parameters.flat.dtype)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(parameters.views[name][replica])
    return module


def architectures(shapes, classes, vocabulary=None, **options):
    """The models of the parties for blocks of `shapes`, for options that a configuration might refuse as well."""
    return default_architectures(TrainingConfig.model_construct(**options), shapes, classes, vocabulary)


def ledger_of(trained, place):
    """The ledger of the replica at `place` of the stack alone."""
    ledger = trained.ledger
    sides = ledger.counted_up, ledger.counted_down
    up, down = ({kind: n if isinstance(n, int) else n[place] for kind, n in side.items()} for side in sides)
    return ByteLedger(up, down, ledger.messages)
