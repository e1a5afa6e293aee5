from pathlib import Path

from dpzv_audit_orchard import label_largest, masked, orchard, sign_feedback

from dpzv_audit.testing import check_attack, check_dataset, check_method


def test_the_method_keeps_its_contract():
    check_method(masked.SPEC)
    check_method(masked.SPEC, sigma=0.0)


def test_the_zeroth_order_method_keeps_its_contract():
    check_method(sign_feedback.SPEC)


def test_the_attack_keeps_its_contract():
    check_attack(label_largest.SPEC)


def test_the_data_set_keeps_its_contract():
    check_dataset(orchard.SPEC, data_dir=Path(__file__).parents[1] / "data")
