"""Tiny networks of transformers with random weights, saved as real ones are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
)
from transformers.utils import logging

SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_labels": 3,
}
WORDS = ("[PAD]", "[UNK]", "good", "bad", "film", "very", "not")
IMAGES = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 16, "width": 16},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.25, 0.5],
    "image_std": [0.5, 0.5, 0.25],
}


def saved(model: Any, folder: Path) -> str:
    """Save a network and return its name."""
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    return f"hf:{folder}"


def vit(folder: Path, **changes: Any) -> str:
    torch.manual_seed(0)
    config = ViTConfig(**SMALL, image_size=16, patch_size=8)
    name = saved(ViTForImageClassification(config), folder)
    plain = {key: value for key, value in {**IMAGES, **changes}.items() if value is not None}
    (folder / "preprocessor_config.json").write_text(json.dumps(plain))
    return name


def resnet(folder: Path) -> str:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=3)
    name = saved(ResNetForImageClassification(config), folder)
    plain = {**IMAGES, "size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": 32}
    (folder / "preprocessor_config.json").write_text(json.dumps(plain))
    return name


def wav2vec(folder: Path) -> str:
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        **SMALL,
        conv_dim=(4, 4),
        conv_stride=(4, 4),
        conv_kernel=(8, 8),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        classifier_proj_size=8,
    )
    Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(folder)
    return saved(Wav2Vec2ForSequenceClassification(config), folder)


def ast(folder: Path) -> str:
    torch.manual_seed(0)
    config = ASTConfig(
        **SMALL, patch_size=8, max_length=16, num_mel_bins=16, frequency_stride=8, time_stride=8
    )
    extractor = ASTFeatureExtractor(num_mel_bins=16, max_length=16, sampling_rate=8000)
    extractor.save_pretrained(folder)
    return saved(ASTForAudioClassification(config), folder)


def bert(folder: Path) -> str:
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    numbers = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=12
    )
    tokenizer.save_pretrained(folder)
    config = BertConfig(**SMALL, vocab_size=len(WORDS), max_position_embeddings=12)
    return saved(BertForSequenceClassification(config), folder)
