"""Pretrained networks on real nodes: features are computed once beside each, the bits are the same.

Each node makes the network from the model's own files, and its resident process keeps the features
of its clients as long as the run goes on.
"""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from real import running
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("flower")]

WORDS = ("[PAD]", "[UNK]", "good", "bad", "film", "very")
COUNTING = '''
"""Writes down which rows of features are computed, and by which process."""

import os
from pathlib import Path

from fedtail.data.feature_store import FeatureStore

compute = FeatureStore._compute


def counted(self, together, inputs):
    def seen(part):
        with Path(__file__).with_name(f"computed-{os.getpid()}").open("a") as file:
            file.writelines(f"{self.samples} {row}\\n" for row in part.tolist())
        return inputs(part)

    compute(self, together, seen)


FeatureStore._compute = counted
'''


def saved_bert(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=12
    ).save_pretrained(folder)
    small = BertConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=len(WORDS),
        max_position_embeddings=12,
    )
    BertForSequenceClassification(small).save_pretrained(folder)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a folder with a model, 60 texts of three people, and what counts."""
    saved_bert(tmp_path / "bert")
    (tmp_path / "counting.py").write_text(COUNTING)
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["text", "label"])
        for i in range(60):
            text = f"{'very ' * (i % 3)}{'good' if i % 2 else 'bad'} film"
            table.writerow([text, "glad" if i % 2 else "sad"])
    return tmp_path


def words(train: str) -> list[str]:
    return [
        *("run", "--data", "rows.csv", "--model", "hf:bert", "--train", train, "--rounds", "3"),
        *("--method", "fedavg"),
        *("--clients", "3", "--partition", "iid", "--together", "0", "--workers", "0"),
    ]


@pytest.mark.parametrize("train", ["head", "lora:r=2"])
def test_nodes_are_as_one_process(train: str, here: Path) -> None:
    with running(here / "alone", *words(train), "--out", "alone") as alone:
        assert alone.end(300) == 0, alone.output
    count = ["--plugin", str(here / "counting.py")]
    nodes = ["--engine", "flower", "--nodes", "3", "--out", "nodes"]
    with running(here / "nodes", *words(train), *count, *nodes) as run:
        assert run.end(1200) == 0, run.output
    assert run.digest() == alone.digest()
    for ours, theirs in zip(alone.records(), run.records(), strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    computed = {
        file.name: Counter(file.read_text().splitlines()) for file in here.glob("computed-*")
    }
    if train == "head":
        # 48 texts train and 12 test, and in three rounds each is computed once: those of a client
        # beside its node, in one process a node, and the test set by the server.
        rows: Counter[str] = Counter()
        for each in computed.values():
            rows += each
        assert set(rows.values()) == {1}
        sizes = Counter(row.split()[0] for row in rows)
        assert sizes == {"48": 48, "12": 12}
        assert len([name for name, c in computed.items() if any(r[:3] == "48 " for r in c)]) == 3
    else:
        assert computed == {}
    share = 4 * (8 * 2 + 2)
    if train == "head":
        assert run.records()[-1]["bytes_down"] == 3 * share
    assert np.isfinite(run.records()[-1]["accuracy"])
