"""The mutants of a module: cosmic-ray's operators and swaps of our own, at the places where a mutant means something.

Left out: annotations, decorators, defaults of parameters, bodies of classes (both are fixed when the module loads),
f-strings and what is raised (wording), imports, and arguments that only limit a search (`maxiter`, `maxsize`).
"""

import ast
import random
from dataclasses import dataclass
from functools import cache

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import PythonLeaf

_BINARY = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul", "FloorDiv_Div", "Mod_FloorDiv", "BitAnd_BitOr")
_COMPARISON = ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")
_NEGATED = ("Lt_GtE", "LtE_Gt", "Gt_LtE", "GtE_Lt")
_UNARY = ("USub_UAdd", "Delete_Not", "Delete_Invert")
OPERATORS = (
    *(f"core/ReplaceBinaryOperator_{pair}" for pair in (*_BINARY, "BitOr_BitAnd")),
    *(f"core/ReplaceComparisonOperator_{pair}" for pair in (*_COMPARISON, *_NEGATED)),
    *(f"core/ReplaceUnaryOperator_{pair}" for pair in _UNARY),
    *(f"core/{name}" for name in ("NumberReplacer", "AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd")),
    *(f"core/{name}" for name in ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ZeroIterationForLoop")),
    *(f"core/{name}" for name in ("ReplaceBreakWithContinue", "ReplaceContinueWithBreak")),
)
_PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("floor", "ceil"),
    ("argmin", "argmax"),
    ("any", "all"),
    ("upper_limit", "lower_limit"),
    ("+=", "-="),
    ("*=", "/="),
)
SWAPS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
_SEARCH_LIMITS = {"maxiter", "maxsize", "stacklevel"}


@dataclass(frozen=True)
class Mutant:
    """One change of `module`: line `line` of function `where` ("" outside functions) reads `after`, not `before`."""

    module: str
    where: str
    line: int
    before: str
    after: str
    source: str
    """The whole mutated module."""

    @property
    def key(self):
        """What a mutant is known by: it stays the same where other lines of the module change."""
        return self.module, self.where, self.before, self.after


class Swap(Operator):  # type: ignore[misc]
    """Replaces a called name or an augmented assignment by its opposite: min by max, floor by ceil, += by -=."""

    def mutation_positions(self, node):
        """Yield the node's own place where it can be swapped."""
        if not isinstance(node, PythonLeaf) or node.value not in SWAPS:
            return
        following = node.get_next_leaf()
        if node.type == "operator" or (following is not None and following.value in ("(", ".")):
            yield node.start_pos, node.end_pos

    def mutate(self, node, index):
        """Return the leaf with its opposite in it."""
        node.value = SWAPS[node.value]
        return node

    @classmethod
    def examples(cls):
        """No examples: the tests hold them."""
        return ()


@dataclass(frozen=True)
class Place:
    """Where one operator can change a module: its number among the operators and which of its places this is."""

    operator: int
    occurrence: int
    line: int
    where: str


def places(source):
    """Return all places where a mutant of `source` means something, in the order of the operators."""
    places_found = []
    nodes = [(node, _means_something(node)) for node in ast_nodes(get_ast(source))]
    for number, operator in enumerate(_operators()):
        occurrence = 0
        for node, wanted in nodes:
            for (line, _), _ in operator.mutation_positions(node):
                if wanted:
                    places_found.append(Place(number, occurrence, line, _where(node)))
                occurrence += 1
    return places_found


def mutant(module, source, place):
    """Return the mutant of `source`, the text of `module` (its path); None where it means the same or nothing."""
    mutated = mutate_code(source, _operators()[place.operator], place.occurrence)
    assert mutated is not None
    try:
        if ast.dump(ast.parse(source)) == ast.dump(ast.parse(mutated)):
            return None
    except SyntaxError:  # "not" before a named expression
        return None
    # What an operator changes lies within a line, so that lines keep their numbers.
    pairs = zip(source.splitlines(), mutated.splitlines(), strict=True)
    before, after = next((old.strip(), new.strip()) for old, new in pairs if old != new)
    return Mutant(module, place.where, place.line, before, after, mutated)


def shuffled(module, source, seed):
    """Return the places in a random order that depends on module and `seed` alone."""
    order = places(source)
    random.Random(f"{module}:{seed}").shuffle(order)
    return order


@cache
def _operators():
    return (*(get_operator(name)() for name in OPERATORS), Swap())


def _ancestors(node):
    """Yield (child, parent) from `node` up to the module."""
    while node.parent is not None:
        yield node, node.parent
        node = node.parent


def _means_something(node):
    in_function = False
    for child, parent in _ancestors(node):
        if parent.type in ("fstring", "decorator", "raise_stmt", "import_from", "import_name", "tfpdef", "param"):
            return False
        if parent.type == "annassign" and child is parent.children[1]:
            return False
        if parent.type == "argument" and getattr(parent.children[0], "value", "") in _SEARCH_LIMITS:
            return False
        if parent.type in ("funcdef", "lambdef"):
            if child is parent.children[-1]:
                in_function = True
            elif parent.type == "funcdef":
                return False
        if parent.type == "classdef" and not in_function:
            return False
    return True


def _where(node):
    names = [parent.name.value for _, parent in _ancestors(node) if parent.type in ("funcdef", "classdef")]
    return ".".join(reversed(names))
