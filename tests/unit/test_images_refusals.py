"""What cannot be attached, and the one sentence that says so."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from tuichat.api import ImageRefused
from tuichat.images import check_image, load_image
from tuichat.images.files import MAX_BYTES


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def png() -> bytes:
    return encoded(Image.new("RGB", (30, 20), "red"), "PNG")


@pytest.fixture(scope="module")
def noise() -> Image.Image:
    return Image.effect_noise((300, 300), 80).convert("RGB")


@pytest.fixture
def quick() -> Iterator[None]:
    """Whatever is refused is refused in less than a second."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 1


def refusal(path: str | os.PathLike[str]) -> str:
    with pytest.raises(ImageRefused) as caught:
        load_image(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "\x1b" not in sentence
    assert "Traceback" not in sentence
    return sentence


def test_a_good_file_is_taken_byte_for_byte(tmp_path: Path, png: bytes) -> None:
    path = tmp_path / "red.png"
    path.write_bytes(png)
    loaded = load_image(path)
    path.unlink()  # what happens to the file afterwards does not matter
    assert loaded.data == png
    assert loaded.digest == hashlib.sha256(png).hexdigest()
    assert (loaded.name, loaded.format, loaded.notice) == ("red.png", "PNG", None)
    assert (loaded.width, loaded.height) == (30, 20)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_type_is_told_by_content_not_by_name(tmp_path: Path, format: str) -> None:
    path = tmp_path / "misleading.txt"
    path.write_bytes(encoded(Image.new("RGB", (30, 20), "red"), format))
    loaded = load_image(path)
    assert (loaded.format, loaded.width, loaded.height) == (format, 30, 20)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty (0 bytes)"),
        (b"just some words\n", "it is a text file"),
        ("Grüße, ein Text\n".encode() * 40, "it is a text file"),
        (b"BMW is a maker of cars, and this is a text", "it is a text file"),
        (b"<!DOCTYPE html><html><body>404</body></html>", "it is a web page (HTML)"),
        (b"\n <HTML><body>no</body>", "it is a web page (HTML)"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>", "it is an XML document"),
        (b"<?xml version='1.0'?><svg xmlns='x'/>", "it is an SVG drawing"),
        (b"%PDF-1.7\n%\xe2\xe3", "it is a PDF document"),
        (b"PK\x03\x04rest", "it is a ZIP archive"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "it is a video"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (bytes(range(256)), "in no format that is known here"),
    ],
)
def test_what_is_no_image_is_named(tmp_path: Path, content: bytes, words: str, quick: None) -> None:
    path = tmp_path / "shot.png"
    path.write_bytes(content)
    sentence = refusal(path)
    assert sentence.startswith("shot.png ") or "shot.png" in sentence
    assert words in sentence
    assert ":" in sentence  # reason: cure


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
def test_half_a_file_is_refused_at_attach(
    tmp_path: Path, noise: Image.Image, format: str, part: float
) -> None:
    data = encoded(noise, format)
    path = tmp_path / f"half.{format.lower()}"
    path.write_bytes(data[: int(len(data) * part)])
    sentence = refusal(path)
    assert "half." in sentence
    assert "copy" in sentence


def test_a_truncated_jpeg_is_called_cut_short(tmp_path: Path, noise: Image.Image) -> None:
    data = encoded(noise, "JPEG")
    path = tmp_path / "photo.jpg"
    path.write_bytes(data[: len(data) // 2])
    assert "cut short" in refusal(path)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_damaged_bytes_give_an_image_or_a_sentence(
    noise: Image.Image, format: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing but ``ImageRefused`` comes out, whichever byte is wrong."""
    good = encoded(noise.resize((40, 40)), format)
    sentences: list[str] = []
    for at in range(8, min(len(good), 700), 7):
        data = bytearray(good)
        data[at] ^= 0xFF
        try:
            check_image(bytes(data), "broken.bin")
        except ImageRefused as error:
            sentences.append(str(error))
    assert sentences
    assert all(sentence.startswith("broken.bin ") for sentence in sentences)
    assert capfd.readouterr() == ("", "")  # the C libraries are quiet too


def test_missing_file_offers_near_names(tmp_path: Path, png: bytes, quick: None) -> None:
    (tmp_path / "Holiday Photo.PNG").write_bytes(png)
    (tmp_path / "unrelated.txt").write_text("x")
    sentence = refusal(tmp_path / "holiday foto.png")
    assert "is not on this machine" in sentence
    assert "did you mean Holiday Photo.PNG?" in sentence
    assert "unrelated" not in sentence
    assert "check the path" in refusal(tmp_path / "zzzzzzzz")
    assert "there is no folder" in refusal(tmp_path / "nowhere" / "x.png")


def test_named_pipe(tmp_path: Path, quick: None) -> None:
    os.mkfifo(tmp_path / "x.png")
    assert "is a named pipe" in refusal(tmp_path / "x.png")


def test_socket(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a short path: the platform limits it
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s.png")
        assert "is a socket" in refusal(tmp_path / "s.png")


def test_devices_and_links_to_them(tmp_path: Path, quick: None) -> None:
    assert "is a device" in refusal("/dev/zero")
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    assert "endless.png is a device" in refusal(tmp_path / "endless.png")


def test_folder(tmp_path: Path, quick: None) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_links(tmp_path: Path, png: bytes) -> None:
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing here")
    assert "nothing here, which does not exist" in refusal(tmp_path / "gone.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    assert "leads back to itself" in refusal(tmp_path / "loop.png")
    (tmp_path / "real.png").write_bytes(png)
    (tmp_path / "good.png").symlink_to("real.png")
    assert load_image(tmp_path / "good.png").name == "good.png"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a\0b.png", "NUL"),
        ("x" * 5000 + ".png", "too long"),
        ("/etc/passwd/x.png", "not a folder"),
        ("", "No file was named"),
    ],
)
def test_impossible_paths(path: str, words: str) -> None:
    sentence = refusal(path)
    assert words in sentence
    assert len(sentence) < 300


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not read")
def test_unreadable_file_as_somebody_else(tmp_path: Path, png: bytes) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(png)
    path.chmod(0)
    os.seteuid(65534)
    try:
        sentence = refusal(path)
    finally:
        os.seteuid(0)
    assert "may not be read by you" in sentence


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path, png: bytes) -> None:
    path = tmp_path / "secret.png"
    path.write_bytes(png)
    path.chmod(0)
    assert "may not be read by you" in refusal(path)


def test_names_are_sanitised(tmp_path: Path) -> None:
    evil = tmp_path / "a\x1b]0;owned\x07\nb.png"
    evil.write_bytes(b"text")
    assert "a␛]0;owned␇ b.png" in refusal(evil)
    undecodable = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    Path(undecodable).write_bytes(b"text")
    refusal(undecodable).encode()  # no lone surrogate is left in it


def test_undecodable_name_loads(tmp_path: Path, png: bytes) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png")
    Path(path).write_bytes(png)
    assert os.fsencode(load_image(path).name) == b"caf\xe9.png"


def test_too_many_bytes(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "big.png"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert "at most 64 MB are read" in refusal(path)
    with pytest.raises(ImageRefused, match="at most 64 MB"):
        check_image(bytes(MAX_BYTES + 1), "big.png")


def test_a_file_that_lies_about_its_size_is_read(quick: None) -> None:
    # Files in /proc say that they are 0 bytes long.
    assert "it is a text file" in refusal("/proc/self/status")


@pytest.mark.parametrize(
    ("size", "words"),
    [((14000, 13000), "182 megapixels"), ((10100, 9950), "100 megapixels (10100×9950)")],
)
def test_bomb_is_refused_by_its_header(
    tmp_path: Path, size: tuple[int, int], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", size).save(path)
    before = Image.MAX_IMAGE_PIXELS
    start = time.monotonic()
    sentence = refusal(path)
    assert time.monotonic() - start < 0.5
    assert words in sentence
    assert "at most 100 megapixels" in sentence
    assert before == Image.MAX_IMAGE_PIXELS
    assert capfd.readouterr() == ("", "")


def test_just_below_the_limit_is_decoded_without_a_word(
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = encoded(Image.new("1", (10000, 9900), 1), "PNG")  # Pillow's own limit is 89 megapixels
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = check_image(data, "panorama.png")
    assert (loaded.width, loaded.height) == (10000, 9900)
    assert capfd.readouterr() == ("", "")


def test_heic_says_which_codec_is_missing() -> None:
    data = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)
    with pytest.raises(ImageRefused) as caught:
        check_image(data, "IMG_1.HEIC")
    try:
        import pillow_heif  # noqa: F401
    except ImportError:
        assert "pip install pillow-heif" in str(caught.value)
    else:
        assert "damaged" in str(caught.value)


def test_a_path_that_lost_its_special_spaces_is_found(tmp_path: Path, png: bytes) -> None:
    (tmp_path / "Screenshot at 3.04.12\u202fPM.png").write_bytes(png)
    assert load_image(tmp_path / "Screenshot at 3.04.12 PM.png").width == 30
    (tmp_path / "Zoe\u0308").mkdir()
    (tmp_path / "Zoe\u0308" / "u\u0308ber.png").write_bytes(png)  # decomposed, as macOS writes it
    assert load_image(tmp_path / "Zo\u00eb" / "\u00fcber.png").width == 30


def test_importing_the_package_imports_no_codec() -> None:
    code = (
        "import sys, tuichat.images; "
        "sys.exit(any(name.split('.')[0] in ('PIL', 'numpy', 'torch') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
