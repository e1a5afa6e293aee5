"""What an attack may need of a setting: each says in one line why it is not there, or None where it is."""

from .contract import AttackSetting, Need


def one_batch_size(setting: AttackSetting) -> str | None:
    """Need batches that can be read side by side: under Poisson sampling their sizes differ."""
    if setting.config.sampler == "poisson":
        return "sampler is 'poisson', must be shuffled or uniform: batches of one size are read"
    return None


def binary_labels(setting: AttackSetting) -> str | None:
    """Need two classes."""
    data = setting.dataset
    if data.classes != 2:
        return f"{data.name} has {data.classes} classes, must have 2"
    return None


def downlink(gradient: bool, otherwise: str) -> Need:
    """Need a server that sends gradients, or one that does not: the reason `otherwise`."""
    return lambda setting: None if (setting.method.downlink == "gradient") == gradient else otherwise


record_gradients: tuple[Need, ...] = (downlink(True, "its server sends no gradient of a record"), one_batch_size)
