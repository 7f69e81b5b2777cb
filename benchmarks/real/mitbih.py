"""Heartbeats with their rhythm: write ``mitbih_rr.npz`` from ``mitbih_aami.npz``, in FEDTAIL_DATA.

    python -m benchmarks.real.mitbih

A supraventricular beat (class S) often looks like a normal one and only comes too early, so the
wave alone cannot tell it. Beside the wave, each window gets two more channels: the interval before
the beat and the one after it, over the median interval of the same patient. Nothing of another
patient is used. Class Q, of which there are 8 beats, is left out by ``mitbih.toml``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from fedtail.data.formats.npz import read_npz, write_npz
from fedtail.data.public import data_folder
from fedtail.errors import FedtailError

SHORTEST, LONGEST = 0.3, 2.0
"""Limits of a relative interval; beyond them beats are missing at a gap in the record."""


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.parse_args()
    source, target = (data_folder() / f"mitbih_{name}.npz" for name in ("aami", "rr"))
    try:
        raw = read_npz(source)
    except FedtailError as error:
        parser.error(str(error))
    with np.load(source, allow_pickle=False) as file:
        rhythm = {part: file[f"rr_{part}"] for part in ("train", "test")}
    parts = (("train", raw.x_train, raw.client_train), ("test", raw.x_test, raw.client_test))
    windows = {
        f"x_{part}": with_rhythm(np.asarray(x), rhythm[part], np.asarray(patient))
        for part, x, patient in parts
    }
    write_npz(target, replace(raw, **windows))
    print(f"{target}: {len(raw.x_train):,} training and {len(windows['x_test']):,} test beats")


def with_rhythm(wave: np.ndarray, rhythm: np.ndarray, patient: np.ndarray) -> np.ndarray:
    """Return windows (time, 3): the wave, the interval before and the interval after.

    Parameters
    ----------
    wave
        One row a beat; 200 units are a millivolt.
    rhythm
        The intervals before and after each beat, in samples.
    patient
        Whose beat it is.
    """
    relative = np.empty(rhythm.shape, np.float32)
    for one in np.unique(patient):
        own = patient == one
        relative[own] = rhythm[own] / np.median(rhythm[own])
    relative = 2 * (relative.clip(SHORTEST, LONGEST) - 1)
    steps = np.broadcast_to(relative[:, None, :], (*wave.shape, 2))
    return np.concatenate([wave[:, :, None].astype(np.float32) / 100, steps], axis=2)


if __name__ == "__main__":
    main()
