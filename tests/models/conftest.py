"""Nets as transformers stores them."""

import pytest
import torch
from pretrained_cases import NO_DROPOUT, SMALL


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small BERT, a small ViT and a small GPT, as transformers stores them."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    root = tmp_path_factory.mktemp("nets")
    bert = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **SMALL, **NO_DROPOUT)
    vit = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL, **NO_DROPOUT)
    transformers.BertModel(bert).save_pretrained(root / "bert")
    transformers.ViTModel(vit).save_pretrained(root / "vit")
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    gpt = transformers.GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2, **off)
    transformers.GPT2LMHeadModel(gpt).save_pretrained(root / "gpt")
    return root
