"""Prints what the attack and the audit find behind each defence: python defences.py."""

from math import floor

from dpzv_audit import attack, audit

LINE = "{:<32} attack {:.3f}   epsilon {} {:.2f}   test accuracy {:.3f}"
FORMS = {
    "no defence": "train",
    "100 records in each leaf": "train_large_leaves",
    "half of the trees by the bank": "train_bank_first",
}

for words, name in FORMS.items():
    found = attack(system=f"boosting:{name}", attack="label_groups", trials=8)
    audited = audit(system=f"boosting:{name}", trials=20)
    lower = floor(100 * audited.privacy.empirical_lower) / 100
    print(LINE.format(words, found.success.value, ">=", lower, found.utility.test_accuracy.value))

for epsilon in (1.0, 3.0):
    found = attack(
        system="boosting:train", attack="label_groups", trials=8, defence="label-rr", defence_set={"epsilon": epsilon}
    )
    upper = found.privacy.upper
    words = f"label-rr at epsilon {epsilon:g}"
    print(LINE.format(words, found.success.value, "<=", upper, found.utility.test_accuracy.value))
