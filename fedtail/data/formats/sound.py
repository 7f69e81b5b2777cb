"""Wav files as waveforms: one channel, one rate, one length."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedtail.errors import FedtailError
from fedtail.plugins import first_line

SOUND_SUFFIXES = (".wav",)


def read_clips(
    paths: Sequence[Path], rate: int | None, seconds: float | None
) -> tuple[np.ndarray, int]:
    """Return clips as (clips, time), float32 in -1..1, and their samples a second.

    Parameters
    ----------
    paths
        The files; two channels become their mean.
    rate
        What others are resampled to; by default that of the first.
    seconds
        Longer clips are cut after this, others end in silence; by default the longest clip.
    """
    clips = []
    for path in paths:
        wave, found = read_clip(path)
        rate = rate or found
        clips.append(resampled(wave[None], found, rate)[0])
    assert rate is not None
    wanted = max(1, round(seconds * rate)) if seconds else max(map(len, clips))
    waves = np.zeros((len(clips), wanted), np.float32)
    for row, clip in zip(waves, clips, strict=True):
        row[: len(clip)] = clip[:wanted]
    return waves, rate


def read_clip(path: Path) -> tuple[np.ndarray, int]:
    """Return one wav file as float32 in -1..1, and its rate."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # chunks that are no sound
            rate, wave = wavfile.read(path)
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise FedtailError(
            f"{path} is not a wav file that can be read: {first_line(error)}"
        ) from None
    if not wave.size:
        raise FedtailError(f"{path} holds no sound")
    plain = wave.astype(np.float32)
    if wave.dtype.kind == "u":  # eight bits count from 0 to 255
        plain = plain / 128 - 1
    elif wave.dtype.kind == "i":
        plain = plain / float(2 ** (8 * wave.dtype.itemsize - 1))
    return (plain if plain.ndim == 1 else plain.mean(axis=1, dtype=np.float32)), int(rate)


def resampled(waves: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Return waveforms (samples, time) at another rate: a polyphase filter, as SciPy has it."""
    if rate == wanted:
        return waves
    from scipy.signal import resample_poly

    common = math.gcd(rate, wanted)
    made: np.ndarray = resample_poly(waves, wanted // common, rate // common, axis=1)
    return made.astype(np.float32)
