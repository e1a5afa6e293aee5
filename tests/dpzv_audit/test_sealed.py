import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzv_audit.sealed import sealed, unsealed

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 20), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_sealed_comes_back_as_json_would_give_it(value):
    text = sealed(value)
    assert unsealed(text.encode()) == json.loads(json.dumps(value)) == json.loads(text)["value"]


@given(VALUES, st.data())
def test_any_change_of_a_byte_is_found(value, data):
    content = bytearray(sealed(value).encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="is damaged"):
        unsealed(bytes(content))


def test_nan_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        sealed(float("nan"))
