"""Private fine-tuning of a language model under audit: dpzv-audit audit mechanism tiny_bert:subject"""

import torch
from transformers import BertConfig, BertForSequenceClassification

from dpzv_audit.integrations.zeroth_order import ZerothOrderTraining


def subject():
    """Eight steps on 24 texts of random words, with one record more in one world."""
    torch.manual_seed(0)
    ids = torch.randint(3, 50, (24, 8))
    config = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    public = {"batch_size": 6, "sample_rate": 0.25, "steps": 8, "noise_multiplier": 1.0}
    return ZerothOrderTraining(model=BertForSequenceClassification(config), inputs=ids, targets=ids[:, 0] % 2, **public)
