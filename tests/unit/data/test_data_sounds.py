"""Sounds: spectrograms, synthesised sounds that follow from seed and number, and folders of WAV files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from scipy.signal import ShortTimeFFT

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.samples.inputs import Spectrogram, fitted
from tasks.base.errors import UserError
from tasks.data import DataSettings, load_splits
from tasks.data.dataset import describe
from tasks.data.signals import SynthesisedSounds
from tasks.data.signals.sounds import NAMES, SAMPLING_RATE_HZ
from tasks.data.signals.synthesised import EVENTS
from tasks.export.card import image_preparation

RATE_HZ = 8000
PITCHES_HZ = {"high": 2000, "low": 300}


def settings(**options: object) -> DataSettings:
    return DataSettings.model_validate({"kind": "sounds", **options})


@pytest.fixture(scope="module")
def source() -> SynthesisedSounds:
    return SynthesisedSounds(settings())


def spectrogram(bands: int, samples: int = RATE_HZ, window: int = 256) -> Spectrogram:
    return Spectrogram(sampling_rate_hz=RATE_HZ, samples=samples, window=window, bands=bands)


def sine(pitch_hz: float, seconds: float = 1.0, rate_hz: int = RATE_HZ) -> np.ndarray:
    return np.sin(2 * np.pi * pitch_hz * np.arange(round(seconds * rate_hz)) / rate_hz).astype(np.float32)


def write_wavs(folder: Path, count: int = 8, *, seconds: float = 0.6, rate_hz: int = RATE_HZ) -> None:
    """Sines in 16 bits, of two classes."""
    for name, pitch_hz in PITCHES_HZ.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            levels = 0.5 * sine(pitch_hz * (1 + 0.02 * number), seconds, rate_hz) * 32767
            wavfile.write(folder / name / f"{number}.wav", rate_hz, levels.astype(np.int16))


def test_powers_are_those_of_scipy_in_bands_of_the_mel_scale() -> None:
    made = spectrogram(40)
    sound_T = (0.3 * np.random.default_rng(0).standard_normal(RATE_HZ)).astype(np.float32)
    step = RATE_HZ // 40
    window = np.hanning(257)[:-1]
    points = 1 << int(np.ceil(np.log2(max(256, RATE_HZ / (700 * (10 ** (2146.06 / 41 / 2595) - 1))))))
    transform = ShortTimeFFT(window * 2 / np.sqrt(points * np.square(window).sum()), step, RATE_HZ, mfft=points)
    power_FS = np.abs(transform.stft(np.pad(sound_T, (step // 2, 2 * step)), p0=1, p1=41)) ** 2
    frequencies_hz = np.linspace(0, RATE_HZ / 2, len(power_FS))
    edges_hz = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE_HZ / 2 / 700), 42) / 2595) - 1)
    filters = [np.interp(frequencies_hz, edges_hz[at : at + 3], [0, 1, 0]) for at in range(40)]
    expected = 1 + np.log10(np.stack(filters) @ power_FS) / 8
    inner = slice(2, -2)  # ends are padded otherwise
    assert np.abs(made.of(sound_T[None])[0, 0] - np.clip(expected, 0, 1))[:, inner].max() < 1e-4


@pytest.mark.parametrize("bands", [16, 64, 96])
def test_a_sine_is_bright_in_the_band_of_its_pitch_and_a_tenth_of_it_is_20_decibels_darker(bands: int) -> None:
    made = spectrogram(bands)
    pitches_hz = (200.0, 1000.0, 3000.0)
    loud, soft = (made.of(np.stack([share * sine(pitch) for pitch in pitches_hz])) for share in (1.0, 0.1))
    assert loud.shape == (3, 1, bands, bands)
    bands_of = [2595 * np.log10(1 + pitch / 700) / (2595 * np.log10(1 + RATE_HZ / 2 / 700)) for pitch in pitches_hz]
    brightest = loud[:, 0, :, bands // 2].argmax(1)
    assert np.abs((brightest + 1) / (bands + 1) - bands_of).max() < 2 / bands
    for images, level in ((loud, 1.0), (soft, 0.01)):
        power = (10 ** (8 * (images[..., 2:-2] - 1))).sum(2)
        assert np.allclose(power, level, rtol=0.1)
    assert not made.of(np.zeros((1, RATE_HZ), np.float32)).any()


def test_sounds_of_another_length_are_one_line() -> None:
    made = spectrogram(32)
    with pytest.raises(AdaptiveError, match=r"signals: of shape \(1, 1, 7999\); allowed: \(N, 1, 8000\)"):
        made.of(np.zeros((1, RATE_HZ - 1), np.float32))


def test_shorter_sounds_have_silence_around_and_of_longer_ones_a_part_is_taken() -> None:
    sound_T = np.arange(1, 7, dtype=np.float32)
    assert fitted(sound_T, 10).tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 0, 0]
    assert fitted(sound_T, 10, 1.0).tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert fitted(sound_T, 4).tolist() == [2, 3, 4, 5]
    assert fitted(sound_T, 4, 0.0).tolist() == [1, 2, 3, 4]


def test_a_sound_follows_from_its_seed_and_number_alone(source: SynthesisedSounds) -> None:
    indices = np.random.default_rng(0).permutation(6000)[:40]
    together = source.images(indices, None)
    assert together.shape == (40, 1, 64, 64)
    assert together.dtype == torch.float32
    assert together.min() >= 0
    assert together.max() <= 1
    alone = torch.cat([source.images(indices[[place]], None) for place in range(40)])
    assert torch.allclose(alone, together, rtol=0, atol=1e-5)
    other = SynthesisedSounds(settings(seed=1)).images(indices, None)
    assert (other - together).abs().mean() > 0.05


def test_training_sounds_are_made_anew_in_each_epoch(source: SynthesisedSounds) -> None:
    indices, rng = np.arange(20), np.random.default_rng(0)
    one, other = (source.images(indices, rng.random((20, 5))) for _ in range(2))
    assert (one - other).abs().mean() > 0.02
    draws = rng.random((20, 5))
    assert torch.equal(source.images(indices, draws), source.images(indices, draws))


@pytest.mark.parametrize("name", NAMES)
def test_events_are_finite_and_sound_whatever_their_numbers(name: str) -> None:
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * 4), -1).reshape(-1, 4).astype(np.float32)
    t_T = np.linspace(-0.3, 1.0, 4000, dtype=np.float32)
    waves = EVENTS[name](np.tile(t_T, (len(corners), 1)), corners)
    assert waves.shape == (16, 4000)
    assert np.isfinite(waves[:, t_T > 0]).all()
    assert (np.square(waves[:, t_T > 0]).mean(1) > 1e-3).all()


def test_a_tone_has_one_pitch_and_a_rising_one_rises(source: SynthesisedSounds) -> None:
    t_T = np.linspace(0, 1, SAMPLING_RATE_HZ, endpoint=False, dtype=np.float32)[None]
    middle = np.full((1, 4), 0.5, np.float32)
    brightest = {
        name: source.spectrogram.of(0.5 * EVENTS[name](t_T, middle))[0, 0, :, 2:-2].argmax(0) for name in NAMES[:3]
    }
    assert np.ptp(brightest["tone"]) == 0
    assert (np.diff(brightest["rising"]) >= 0).all()
    assert np.ptp(brightest["rising"]) > 10
    assert (np.diff(brightest["falling"]) <= 0).all()
    assert np.ptp(brightest["falling"]) > 10


def test_splits_have_all_classes_and_fewer_may_be_asked_for() -> None:
    splits = load_splits(settings(images=120, classes=4, resolution=32))
    assert {name: len(split) for name, split in splits.items()} == {"train": 80, "validation": 20, "test": 20}
    x_BCHW, target = next(splits["train"].batches(16, seed=0))
    assert x_BCHW.shape == (16, 1, 32, 32)
    assert set(target.tolist()) <= set(range(4))
    with pytest.raises(UserError, match=r"data\.classes: there are 10 kinds of sounds, not 11; ask for fewer"):
        load_splits(settings(classes=11))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 3}, "data.channels=3 with data.kind=sounds; allowed: 1"),
        ({"clip_s": None}, "data.clip_s=None with data.kind=sounds"),
        ({"kind": "glyphs", "clip_s": 1.0}, "data.clip_s=1.0 with data.kind=glyphs"),
    ],
)
def test_options_that_sounds_do_not_have_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**options)


def wavs(path: Path, **options: object) -> DataSettings:
    return settings(kind="wavfolder", path=path, resolution=32, clip_s=0.5, mean=(0.0,), deviation=(1.0,), **options)


def test_folders_of_wav_files_are_sounds_by_class(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        write_wavs(tmp_path / split, 4)
    splits = load_splits(wavs(tmp_path))
    assert splits["train"].class_names == ("high", "low")
    assert {name: len(split) for name, split in splits.items()} == {"train": 8, "validation": 8, "test": 8}
    for x_BCHW, target in (*splits["test"].batches(8), *splits["train"].batches(8, seed=1)):
        brightest_B = x_BCHW[:, 0, :, 16].argmax(1)
        assert torch.equal(brightest_B < 16, target == 1)
    described = describe(splits["train"])
    assert described.spectrogram == spectrogram(32, RATE_HZ // 2)


def test_an_application_that_follows_the_card_gives_the_network_what_it_was_trained_on(tmp_path: Path) -> None:
    write_wavs(tmp_path, 8)
    test = load_splits(wavs(tmp_path))["test"]
    wanted = image_preparation(describe(test), (1, 1, 32, 32)).spectrogram
    assert wanted is not None
    expected = next(test.batches(4))[0]
    files = sorted((tmp_path / "high").iterdir())
    sounds = [fitted(wavfile.read(file)[1].astype(np.float32) / 32768, wanted.samples) for file in files]
    prepared = torch.from_numpy(wanted.of(np.stack(sounds)))
    assert min((prepared - expected[0]).abs().amax((1, 2, 3))) < 1e-6


@pytest.mark.parametrize(("kind", "scale"), [(np.uint8, 127.5), (np.int32, 2**31 - 1), (np.float32, 1.0)])
def test_wav_files_of_all_sample_formats_are_the_same_sound(tmp_path: Path, kind: type, scale: float) -> None:
    write_wavs(tmp_path, 6)
    plain = next(load_splits(wavs(tmp_path))["test"].batches(2))[0]
    for file in tmp_path.glob("*/*.wav"):
        _, levels = wavfile.read(file)
        both = np.stack([levels, levels], 1) / 32768
        wavfile.write(file, RATE_HZ, (both * scale + (128 if kind is np.uint8 else 0)).astype(kind))
    found = next(load_splits(wavs(tmp_path))["test"].batches(2))[0]
    loud = plain > 0.6
    assert loud.any()
    assert torch.allclose(found[loud], plain[loud], atol=0.02)


def test_a_file_of_another_sampling_rate_is_one_line_with_its_name(tmp_path: Path) -> None:
    write_wavs(tmp_path, 6)
    wavfile.write(tmp_path / "low" / "9.wav", 44_100, np.zeros(44_100, np.int16))
    with pytest.raises(
        UserError, match=r"sound '.*low/9.wav': 44100 Hz; allowed: 8000 Hz, as '.*high/0.wav'; resample it"
    ):
        load_splits(wavs(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no sound", r"sound '.*low/3.wav': cannot be decoded \(ValueError\)"),
        (b"", r"sound '.*low/3.wav': cannot be decoded"),
        (None, r"sound '.*low/3.wav': has no samples"),
    ],
)
def test_a_broken_or_empty_file_is_one_line_with_its_name(tmp_path: Path, content: bytes | None, message: str) -> None:
    write_wavs(tmp_path, 6)
    if content is None:
        wavfile.write(tmp_path / "low" / "3.wav", RATE_HZ, np.zeros(0, np.int16))
    else:
        (tmp_path / "low" / "3.wav").write_bytes(content)

    def read_all() -> None:
        for split in load_splits(wavs(tmp_path)).values():
            list(split.batches(4))

    with pytest.raises(UserError, match=message):
        read_all()


def test_a_folder_without_sounds_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "low").mkdir()
    (tmp_path / "low" / "a.mp3").touch()
    with pytest.raises(UserError, match=r"no class folder with sounds; allowed: CLASS/\*{.wav,.wave}"):
        load_splits(wavs(tmp_path))
