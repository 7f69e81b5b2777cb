"""CLIP as a teacher: how well images go with sentences, by a network that is never trained.

Radford, Kim, Hallacy and others, "Learning Transferable Visual Models From Natural Language
Supervision", ICML 2021. One encoder of images and one of texts give directions in the same space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedtail.data.augment import normalised
from fedtail.errors import FedtailError
from fedtail.models.hf import HuggingFaceModel, library
from fedtail.models.hf_images import Resized
from fedtail.rng import contained


@dataclass(frozen=True)
class ClipTeacher:
    """A frozen CLIP with its own tokeniser and preprocessing."""

    model: Any
    tokenizer: Any
    resized: Resized

    @torch.no_grad()
    def texts(self, sentences: Sequence[str]) -> Tensor:
        """Return a direction of length 1 for each sentence, (sentences, D), on the CPU."""
        model, most = self.model, self.model.config.text_config.max_position_embeddings
        tokens = self.tokenizer(
            list(sentences), padding=True, truncation=True, max_length=most, return_tensors="pt"
        ).to(model.device)
        return normalize(model.text_projection(model.text_model(**tokens).pooler_output)).cpu()

    @torch.no_grad()
    def logits(self, x: Tensor, texts: Tensor) -> Tensor:
        """Return scale · cos(image, text), (images, texts), with CLIP's own scale.

        Parameters
        ----------
        x
            Images from 0 to 1 of any size, (images, 1 or 3, height, width).
        texts
            Directions of texts.
        """
        model, how = self.model.to(x.device), self.resized.how
        mean, std = (x.new_tensor(numbers)[:, None, None] for numbers in (how.mean, how.std))
        pixels = self.resized.resized(normalised(x, mean, std))
        seen = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
        found: Tensor = model.logit_scale.exp() * normalize(seen) @ texts.to(x.device).T
        return found


class _Saved(HuggingFaceModel):
    """Where a CLIP is."""

    def teacher(self) -> ClipTeacher:
        transformers = library(self.title)
        config = self._loaded(transformers.AutoConfig)
        if config.model_type != "clip":
            raise FedtailError(f"model '{self.title}' is a '{config.model_type}', and no CLIP")
        with contained(0):  # whoever is first in a process has the stream of those who come later
            model = self._loaded(transformers.CLIPModel, dtype=torch.float32)
        resized = Resized(self._preprocessing(config.vision_config))
        return ClipTeacher(model.eval().requires_grad_(False), self._tokenizer(), resized)


@lru_cache(maxsize=1)
def load_clip(name: str) -> ClipTeacher:
    """Return the CLIP of that name, ``hf:NAME-OR-FOLDER``; a process loads it once."""
    kind, _, path = name.partition(":")
    if kind != "hf" or not path:
        raise FedtailError(f"clip = '{name}' is no CLIP: give hf:NAME, or hf:FOLDER")
    return _Saved(path=path).teacher()


@lru_cache(maxsize=4)
def text_directions(name: str, sentences: tuple[str, ...]) -> Tensor:
    """Return what the CLIP of a name makes of sentences; a process computes it once."""
    return load_clip(name).texts(sentences)
