"""What an audit runs of training.py: dpzv-audit audit mechanism audited:subject"""

from training import DATA, model

from dpzv_audit.integrations.opacus import OpacusTraining


def subject():
    """The training of training.py, with a canary in one world and without it in the other."""
    return OpacusTraining(model=model, data=DATA, batch_size=64, noise_multiplier=1.0, max_grad_norm=1.0, epochs=1)
