"""Asks for an error as users meet it: of the right type, with the right words, and in one line."""

from contextlib import contextmanager

import pytest

from dpzv_audit.base.errors import InputError


@contextmanager
def refused(words, error=InputError):
    """The block raises `error`, whose one line matches `words`; as `pytest.raises` otherwise."""
    with pytest.raises(error, match=words) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def refusal(function, *arguments, error=InputError, **options):
    """The one line with which a call is refused."""
    with refused(None, error) as caught:
        function(*arguments, **options)
    return str(caught.value)
