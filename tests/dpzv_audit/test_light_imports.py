"""What is imported for a part of the tool alone: nothing that the part can do without."""

import subprocess
import sys

import pytest

DRAWING = "torch matplotlib sklearn"
LIGHT = {
    "import dpzv_audit; dpzv_audit.__version__": f"{DRAWING} numpy scipy pydantic",
    "import dpzv_audit; dpzv_audit.attack; dpzv_audit.account": DRAWING,
    "from dpzv_audit.results import TrainResult as R; r = R(); repr(r), r._repr_html_()": f"{DRAWING} pandas",
    "import dpzv_audit.accounting": f"{DRAWING} scipy.stats prv_accountant",
    "from dpzv_audit.statistics import estimators": f"{DRAWING} scipy.stats scipy.optimize prv_accountant pydantic",
    "from dpzv_audit.statistics.estimators import ESTIMATORS as E, audit_scores\n"
    "audit_scores(list(range(100, 200)), list(range(100)), delta=1e-5, estimators=tuple(E))": (
        f"{DRAWING} scipy.stats prv_accountant pydantic"
    ),
    "import dpzv_audit.runs, dpzv_audit.data; dpzv_audit.runs.environment()": f"{DRAWING} scipy",
    "from dpzv_audit.cli.listing import listed; listed('datasets'); listed('adversaries')": DRAWING,
    "from dpzv_audit.cli.view import view": f"{DRAWING} scipy plotly",
    "from dpzv_audit.systems import Recorder, Task; Recorder(2, 1)": "torch",
}


@pytest.mark.parametrize("code", LIGHT)
def test_nothing_heavy_is_loaded(code):
    program = f"import sys\n{code}\nprint(*set({LIGHT[code].split()}) & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
