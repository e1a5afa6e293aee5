"""A mistake is refused in one line: what tests of refusals share."""

from contextlib import contextmanager

import pytest

from dpzv_audit.base.errors import InputError


@contextmanager
def one_line(pattern, kind=InputError):
    """Expect an error whose message is one line that matches `pattern`; yield what pytest catches."""
    with pytest.raises(kind, match=pattern) as caught:
        yield caught
    assert "\n" not in str(caught.value)
