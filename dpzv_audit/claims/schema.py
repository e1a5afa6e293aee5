"""The JSON schema of a claims file, for editors that check and complete TOML as it is typed."""

from __future__ import annotations

from pydantic.json_schema import models_json_schema

from dpzv_audit.claims.model import FORMS, Defaults


def claims_schema() -> dict[str, object]:
    """Return the JSON schema (draft 2020-12) of a claims file: `[defaults]` and the four forms of `[[claim]]`."""
    models = (*FORMS.values(), Defaults)
    places, definitions = models_json_schema([(model, "validation") for model in models], by_alias=True)
    for definition in definitions["$defs"].values():
        # What [defaults] may give need not stand in the claim itself.
        required = definition.get("required", [])
        if "name" in required:
            definition["required"] = [key for key in required if key not in Defaults.model_fields]
    refs = {model: places[(model, "validation")] for model in models}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "dpzv-audit claims file",
        "type": "object",
        "additionalProperties": False,
        "required": ["claim"],
        "properties": {
            "defaults": refs[Defaults],
            "claim": {"type": "array", "minItems": 1, "items": {"anyOf": [refs[model] for model in FORMS.values()]}},
        },
        **definitions,
    }
