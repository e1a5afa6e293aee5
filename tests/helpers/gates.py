"""Gates on claims files, with nothing kept unless a cache is named."""

from dpzv_audit.claims.access import Access
from dpzv_audit.claims.cache import Cache
from dpzv_audit.claims.file import load_claims, parse_claims
from dpzv_audit.claims.gate import Gate


def gate_of(claims, *, cache=None, root=None, trust_code=False, **options):
    """The gate of a claims file, by its path or as it was read."""
    file = claims if hasattr(claims, "claims") else load_claims(claims)
    access = Access.of(file.path, root=root, trust_code=trust_code, device="cpu")
    return Gate(file=file, access=access, cache=Cache(cache), **options)


def gate_on(folder, text, **options):
    """The gate of claims as if they stood in `claims.toml` of a folder, where nothing is written."""
    return gate_of(parse_claims(text, folder / "claims.toml"), **options)


def gathered(gate):
    """The runs of a gate, with their evidence."""
    runs = gate.prepare()
    gate.gather(runs)
    return runs
