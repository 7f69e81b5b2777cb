"""Log-mel pictures of one-second clips, as BalanceFL makes them.

S. Shuai et al., "BalanceFL: Addressing Class Imbalance in Long-Tail Federated Learning", IPSN 2022:
power spectrogram (periodic Hann window, centred, reflected at the ends), 32 triangular bands on
the mel scale m = 2595 log10(1 + f / 700), decibels, at most 80 dB below the clip's loudest cell.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from fedtail.errors import FedtailError

RATE = 16_000
BANDS = 32
FRAMES = 32
FLOOR = 1e-10
RANGE_DB = 80.0
SHORT = 9 * 1024
"""Clips with fewer samples are cut into shorter windows, or too few frames would be left."""


def read_wav(data: bytes, where: str) -> Tensor:
    """Return the samples of a 16 kHz, 16 bit, mono clip in -1..1."""
    try:
        with wave.open(io.BytesIO(data)) as clip:
            kind = (clip.getframerate(), clip.getsampwidth(), clip.getnchannels())
            frames = clip.readframes(clip.getnframes())
    except (wave.Error, EOFError) as error:
        raise FedtailError(f"{where} is not a wav file: {error}") from error
    if kind != (RATE, 2, 1):
        raise FedtailError(
            f"{where} has {kind[0]} Hz, {8 * kind[1]} bit, {kind[2]} channels; "
            f"{RATE} Hz, 16 bit, 1 channel is needed"
        )
    return torch.from_numpy(np.frombuffer(frames, "<i2").astype(np.float32) / 32768.0)


def mel_pictures(clips: Sequence[Tensor]) -> Tensor:
    """Return one 1 x 32 x 32 picture in decibels for each clip; clips of one length go together."""
    pictures = torch.empty(len(clips), 1, BANDS, FRAMES)
    lengths = np.array([len(clip) for clip in clips])
    for length in np.unique(lengths):
        members = np.flatnonzero(lengths == length).tolist()
        decibels = _decibels(torch.stack([clips[i] for i in members]))
        pictures[members, 0] = _framed(decibels)
    return pictures


@cache
def mel_filters(fft: int) -> Tensor:
    """Return the (frequencies, bands) matrix of triangles with peaks of one, from 0 Hz to 8 kHz."""
    frequencies = torch.linspace(0, RATE / 2, fft // 2 + 1, dtype=torch.float64)
    top = 2595.0 * np.log10(1.0 + RATE / 2 / 700.0)
    corners = 700.0 * (10.0 ** (torch.linspace(0, top, BANDS + 2, dtype=torch.float64) / 2595) - 1)
    rising = (frequencies[:, None] - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - frequencies[:, None]) / (corners[2:] - corners[1:-1])
    return torch.minimum(rising, falling).clamp_min(0).to(torch.float32)


def _decibels(clips: Tensor) -> Tensor:
    """Return (clips, bands, frames)."""
    fft = 1024 if clips.shape[1] >= SHORT else 512
    if clips.shape[1] < fft:  # a reflected end needs more samples than half a window
        clips = torch.nn.functional.pad(clips, (0, fft - clips.shape[1]))
    spectrum = torch.stft(
        clips, fft, hop_length=fft // 2, window=torch.hann_window(fft), return_complex=True
    )
    power = spectrum.real.square() + spectrum.imag.square()
    decibels = 10.0 * (mel_filters(fft).T @ power).clamp_min(FLOOR).log10()
    return decibels.maximum(decibels.amax((1, 2), keepdim=True) - RANGE_DB)


def _framed(pictures: Tensor) -> Tensor:
    """Bring pictures to 32 frames: read row by row, and from the start again when they run out."""
    if pictures.shape[2] == FRAMES:
        return pictures
    resized = [np.resize(picture.numpy(), (BANDS, FRAMES)) for picture in pictures]
    return torch.from_numpy(np.stack(resized))
