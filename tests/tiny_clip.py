"""A tiny CLIP with random weights, saved as real ones are."""

from __future__ import annotations

import atexit
import json
import shutil
import string
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from transformers import CLIPConfig, CLIPModel, CLIPTokenizer
from transformers.utils import logging

from fedtail.rng import contained

WIDTH = 6
"""How wide its directions are."""
NAMES = ("cat", "dog", "lorry", "ship")
"""What the classes of the tiny federation are called for it."""
LAYERS = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
IMAGES: dict[str, Any] = {
    "image_processor_type": "CLIPImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 16},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": 16,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.25, 0.5],
    "image_std": [0.5, 0.5, 0.25],
}


def save_clip(folder: Path) -> str:
    """Save a CLIP that reads letters and sees images of 16 by 16, and return its name."""
    ends = ("<|startoftext|>", "<|endoftext|>")
    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    numbers = {token: number for number, token in enumerate([*letters, *ends])}
    start, end = (numbers[token] for token in ends)
    text = {**LAYERS, "vocab_size": len(numbers), "max_position_embeddings": 24}
    text |= {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    vision = {**LAYERS, "image_size": 16, "patch_size": 8}
    logging.disable_progress_bar()
    with contained(0):
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH))
    model.save_pretrained(folder)
    CLIPTokenizer(vocab=numbers, merges=[]).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGES))
    return f"hf:{folder}"


@cache
def one_clip() -> str:
    """Return the name of a tiny CLIP that is there as long as this process."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return save_clip(folder)


def fields() -> dict[str, Any]:
    """Return what makes CLIP2FL quick and lets it run on the tiny federation."""
    small = {"features": 5, "match_steps": 5, "head_epochs": 5}
    return {"clip": one_clip(), "names": NAMES, "contrast": 1.0, **small}
