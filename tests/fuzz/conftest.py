"""Damages valid files in every way that bytes can be damaged, and says what a reader may do about it."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpzv_audit.base.errors import InputError

LONGEST_LINE = 3000
TOKENS = (
    *(b"", b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff" * 8, b"\n", b"\r", b"\r\n\r\n"),
    *(b'"', b"'", b",", b";", b"#", b"[", b"]]", b"{", b"}", b"[[", b"=", b":", b"\\", b"\\u0000", b"\\ud800", b"/../"),
    *(b"nan", b"NaN", b"-inf", b"Infinity", b"1e999", b"-1", b"0", b"9" * 400, b"1_0", b"0x1", b"null", b"true", b"{}"),
    *(
        b"\xc3\x28",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"\xed\xa0\x80",
        b"\x1b[31m",
        b"<script>",
        b"__proto__",
        b"[" * 3000,
    ),
)
"""What breaks readers: sizes, signs, quotes, brackets, numbers that are none, text that is none, deep nesting."""


@st.composite
def damaged(draw, seeds):
    """One of the valid files `seeds` with up to four pieces replaced, doubled, moved or cut, or bytes of no file."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        stop = min(len(content), start + draw(st.sampled_from([0, 0, 1, 1, 2, 4, 8, 40, 10**9])))
        kind = draw(st.sampled_from(["token", "token", "byte", "double", "move", "cut"]))
        piece = bytes(content[start:stop])
        if kind == "token":
            content[start:stop] = draw(st.sampled_from(TOKENS))
        elif kind == "byte":
            content[start : start + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "double":
            content[start:stop] = piece * 2
        else:
            del content[start:stop]
            if kind == "move":
                place = draw(st.integers(0, len(content)))
                content[place:place] = piece
    return bytes(content)


def check_line(error):
    """An error that a user meets: one line of moderate length, all of which prints."""
    message = str(error)
    assert message
    assert message.isprintable(), repr(message)
    assert len(message) <= LONGEST_LINE, len(message)
    assert not re.search(r"Traceback|object at 0x", message)


@pytest.fixture(params=[50, pytest.param(1000, marks=pytest.mark.slow)], ids=["bounded", "large"])
def examples(request):
    """How many files a reader is given: the same few in every run, and with `-m slow` many new ones."""
    return request.param


@pytest.fixture
def withstands(tmp_path, examples):
    """Check that a reader gives a result or an `InputError` of one line for any bytes, and leaves the folder alone."""

    def check(read, *seeds, name, share=1.0, absent=()):
        """`share`: of the usual number of examples; `absent`: further errors that the caller takes for "not there"."""
        path = tmp_path / name

        @settings(
            max_examples=max(1, int(examples * share)),
            derandomize=examples <= 50,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(damaged(seeds))
        def holds(content):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            before = sorted(path.parent.rglob("*"))
            try:
                read(path)
            except InputError as error:
                check_line(error)
                assert sorted(path.parent.rglob("*")) == before
            except absent:
                pass
            assert path.read_bytes() == content

        for seed in seeds:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(seed)
            read(path)  # the undamaged file is read, or nothing was tested
        holds()

    return check
