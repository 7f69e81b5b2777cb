"""Networks of the Hugging Face hub, or saved in their format: images, sound, texts to classes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor, nn

from fedtail.data.dataset import Dataset, Samples
from fedtail.data.texts import Texts
from fedtail.errors import FedtailError, missing_extra
from fedtail.files import make_folder, write_atomic
from fedtail.models.hf_images import Preprocessing, Resized
from fedtail.models.hf_readers import Masked, SoundReader, TextReader, longest, strings
from fedtail.models.probe import last_executed
from fedtail.models.spec import ModelSpec, Reader, Shape, with_numbers
from fedtail.models.split_model import SplitModel
from fedtail.plugins import first_line

PRETRAINED = "pretrained"
"""The folder in a run folder with the configuration, the tokeniser and the like."""
MOST_TOKENS = 512
"""Tokens of a text, where nobody says otherwise: attention costs their square."""
PREPROCESSOR = "preprocessor_config.json"
WEIGHTS = ("*.safetensors", "*.bin")
"""The files that hold weights; those of the first kind are taken if there are any."""
RANDOM = {"apply_spec_augment": False, "layerdrop": 0.0}
"""Random changes inside some networks of sound that draw from NumPy's global stream."""


class Modality(NamedTuple):
    """What a network classifies, in words, and the class of transformers that loads it."""

    name: Literal["image", "sound", "text"]
    loader: str
    configurations: str


MODALITIES = (
    Modality("image", "AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
    Modality("sound", "AutoModelForAudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING"),
    Modality(
        "text",
        "AutoModelForSequenceClassification",
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
    ),
)


@ModelSpec.register("hf")
class HuggingFaceModel(ModelSpec):
    """A pretrained network of transformers with a classifier for these classes: ``hf:NAME``.

    Its own configuration says how inputs are prepared. No code from the hub is run.
    """

    path: str = Field(description="name on the hub, or a folder written by save_pretrained")
    revision: str | None = Field(None, description="branch, tag or commit on the hub")
    initial: Literal["pretrained", "random"] = Field(
        "pretrained", description="first weights: those of the model, or new ones"
    )
    tokens: int | None = Field(
        None,
        ge=1,
        description="of texts: cut after so many tokens; by default what the network takes, at "
        "most 512",
    )

    def build(self, input_shape: Shape, num_classes: int) -> SplitModel:
        """Return the network; a classifier for another number of classes is drawn anew."""
        config, kind = self._configured()
        for name, none in RANDOM.items():
            if hasattr(config, name):
                setattr(config, name, none)
        config.num_labels = num_classes
        loader = getattr(library(self.title), kind.loader)
        if self.initial == "random":
            module: nn.Module = loader.from_config(config)
        else:
            module = self._loaded(
                loader, config=config, dtype=torch.float32, ignore_mismatched_sizes=True
            )
        x = torch.ones(2, *input_shape, dtype=torch.int64 if kind.name == "text" else torch.float32)
        if kind.name == "image":
            module.register_forward_pre_hook(Resized(self._preprocessing(config)))
        elif kind.name == "text":
            module.register_forward_pre_hook(Masked(self._pad()), with_kwargs=True)
        return SplitModel(module.eval(), last_executed(module, x))

    def inputs(self, dataset: Dataset) -> Dataset:
        """Return the data as the network takes it: its constants, its tokens, its features."""
        config, kind = self._configured()
        texts = isinstance(dataset.train.x, Texts)
        if texts != (kind.name == "text"):
            given = "texts" if texts else f"numbers of shape {dataset.input_shape}"
            raise FedtailError(
                f"model '{self.title}' takes {kind.name}s, and the inputs are {given}"
            )
        if kind.name == "image":
            return self._images(with_numbers(dataset), config)
        length: Shape = ()
        if texts:
            both = [*strings(dataset.train.x), *strings(dataset.test.x)]
            length = (longest(self._tokenizer(), both, self._most(config)),)
        reader = self.reader(length, dataset.given.rate)
        assert reader is not None
        return replace(
            dataset,
            train=Samples(reader(dataset.train.x), dataset.train.y),
            test=Samples(reader(dataset.test.x), dataset.test.y),
            mean=(),
            std=(),
            normalisation="none",
        )

    def reader(self, shape: Shape, rate: int | None) -> Reader | None:
        """Return the tokeniser or the feature extractor."""
        kind = self._configured()[1]
        if kind.name == "image":
            return None
        if kind.name == "text":
            return TextReader(self._tokenizer(), shape[0])
        extractor = self._loaded(library(self.title).AutoFeatureExtractor)
        if rate is None:
            raise FedtailError(
                f"model '{self.title}' takes sound of {extractor.sampling_rate} samples a second:"
                " say how many your waveforms have, such as data.rate=16000"
            )
        return SoundReader(extractor, rate)

    def keep(self, folder: Path) -> None:
        """Write configuration and preprocessing into a run folder, without weights."""
        config, kind = self._configured()
        make_folder(folder / PRETRAINED)
        with tempfile.TemporaryDirectory() as draft:
            config.save_pretrained(draft)
            if kind.name == "text":
                self._tokenizer().save_pretrained(draft)
            elif self._json(PREPROCESSOR):
                Path(draft, PREPROCESSOR).write_text(json.dumps(self._json(PREPROCESSOR), indent=1))
            for file in sorted(Path(draft).iterdir()):
                if file.is_file():
                    write_atomic(folder / PRETRAINED / file.name, file.read_bytes())

    def kept(self, folder: Path) -> ModelSpec:
        """Return the same architecture, with new weights, from a run folder."""
        here = folder / PRETRAINED
        if not here.is_dir():
            raise FedtailError(f"'{here}' is not there: it says what '{self.title}' is")
        return self.but(path=str(here), revision=None, initial="random")

    @property
    def title(self) -> str:
        """What the model is called."""
        return f"{self.name}:{self.path}"

    def _images(self, dataset: Dataset, config: Any) -> Dataset:
        how = self._preprocessing(config)
        shape = dataset.input_shape
        if len(shape) != 3 or shape[0] not in (1, len(how.mean)):
            raise FedtailError(
                f"model '{self.title}' takes images of {len(how.mean)} channels (or grey ones), not"
                f" inputs of shape {shape}"
            )
        if dataset.train.x.dtype != torch.uint8 and not from_0_to_1(dataset.train.x):
            return dataset  # numbers that somebody has prepared already
        return replace(dataset, mean=how.mean, std=how.std, normalisation="none")

    def _preprocessing(self, config: Any) -> Preprocessing:
        size = getattr(config, "image_size", None)
        side = (size, size) if isinstance(size, int) else tuple(size) if size else None
        channels = getattr(config, "num_channels", None) or 3
        return Preprocessing.of(self._json(PREPROCESSOR), channels, side)

    def _configured(self) -> tuple[Any, Modality]:
        transformers = library(self.title)
        config = self._loaded(transformers.AutoConfig)
        for kind in MODALITIES:
            if type(config) in getattr(transformers, kind.configurations):
                return config, kind
        raise FedtailError(
            f"model '{self.title}' is a '{config.model_type}', which transformers has no classifier"
            " of images, sound or texts for"
        )

    def _tokenizer(self) -> Any:
        tokenizer = self._loaded(library(self.title).AutoTokenizer)
        if tokenizer.pad_token_id is None:
            raise FedtailError(
                f"model '{self.title}' has a tokeniser without a token to fill up with"
            )
        tokenizer.padding_side = "right"
        return tokenizer

    def _pad(self) -> int:
        return int(self._tokenizer().pad_token_id)

    def _most(self, config: Any) -> int:
        """Return how many tokens a text may have."""
        known = (
            getattr(config, "max_position_embeddings", None),
            self._tokenizer().model_max_length,
        )
        most = min([size for size in known if isinstance(size, int) and size > 0] or [MOST_TOKENS])
        if self.tokens is not None and self.tokens > most:
            raise FedtailError(
                f"model.tokens = {self.tokens} is more than the {most} that '{self.title}' takes"
            )
        return self.tokens or min(most, MOST_TOKENS)

    def _json(self, name: str) -> dict[str, Any]:
        """Return a file of the model as plain data; nothing if it has none."""
        file = self._folder() / name
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}

    def _folder(self) -> Path:
        here = Path(self.path).expanduser()
        return here if here.is_dir() else snapshot(self.path, self.revision)

    def _loaded(self, loader: Any, **options: Any) -> Any:
        """Return what one of the library's loaders makes of the model's folder."""
        folder = self._folder()
        try:
            with quiet_library():
                return loader.from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False, **options
                )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise FedtailError(
                f"model '{self.title}' cannot be loaded from '{folder}': {first_line(error)}"
            ) from None


def library(what: str) -> Any:
    """Return transformers, or say which extra has it."""
    try:
        import transformers
    except ImportError:
        raise missing_extra(f"model '{what}'", "the package transformers", "pretrained") from None
    return transformers


def snapshot(name: str, revision: str | None) -> Path:
    """Return the folder of a model of the hub: as it was fetched before, or fetched now.

    Code is not fetched.
    """
    title = f"hf:{name}"
    library(title)
    from huggingface_hub import snapshot_download

    told = {"repo_id": name, "revision": revision, "ignore_patterns": ["*/*"]}
    for weights in WEIGHTS:
        for here in (True, False):
            try:
                found = snapshot_download(
                    **told,
                    allow_patterns=["*.json", "*.txt", "*.model", weights],
                    local_files_only=here,
                )
            except (OSError, ValueError, RuntimeError) as error:
                if not here:
                    raise FedtailError(
                        f"model '{title}' is neither a folder nor a model that was fetched before,"
                        f" nor does the Hugging Face hub give it now ({first_line(error)})"
                    ) from None
            else:
                if any(Path(found).glob(weights)):
                    return Path(found)
    raise FedtailError(f"model '{title}' has no weights that can be read")


@contextmanager
def quiet_library() -> Iterator[None]:
    """Keep transformers from telling what it loads and which classifier did not fit."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def from_0_to_1(x: Any) -> bool:
    """Whether real numbers count from 0 to 1, as bytes do."""
    return isinstance(x, Tensor) and bool(x.min() >= 0) and bool(x.max() <= 1)
