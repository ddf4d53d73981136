import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from plafond.data.buckets import Bucket
from plafond.data.images import EXTENSIONS, load_rgb, read_size, to_pixels
from plafond.errors import DataError

# A picture whose corners differ: red top left, green top right, blue bottom left, white bottom right.
CORNERS = np.array([[(255, 0, 0), (0, 255, 0)], [(0, 0, 255), (255, 255, 255)]], np.uint8)


def corners(width=60, height=40):
    return Image.fromarray(CORNERS).resize((width, height), Image.Resampling.NEAREST)


def pixel(image, x, y):
    return np.asarray(image)[y, x].tolist()


@pytest.mark.parametrize("ext", [".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tiff", ".avif", ".tga"])
def test_common_extensions_are_pictures(ext):
    assert ext in EXTENSIONS


@pytest.mark.parametrize("ext", [".pdf", ".eps", ".mpg", ".txt", ".json", ".mp4", ".wmf"])
def test_documents_drawings_and_video_are_not(ext):
    assert ext not in EXTENSIONS


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ext", ["jpg", "png", "webp", "tiff"])
def test_exif_orientation(tmp_path, ext, orientation):
    path = tmp_path / f"a.{ext}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    corners().save(path, exif=exif, **({"quality": 95} if ext == "jpg" else {}))
    size = (40, 60) if orientation >= 5 else (60, 40)
    image = load_rgb(path)
    assert read_size(path) == image.size == size
    # The stored top left corner (red) ends up where the orientation says.
    left, top = orientation in (1, 4, 5, 8), orientation in (1, 2, 5, 6)
    red = pixel(image, 2 if left else size[0] - 3, 2 if top else size[1] - 3)
    assert red[0] > 200 and red[1] < 60 and red[2] < 60


def test_exif_behind_the_pixels_of_a_png_is_found(tmp_path):
    path, exif = tmp_path / "a.png", Image.Exif()
    exif[0x0112] = 6
    corners().save(path)
    block = b"eXIf" + exif.tobytes().removeprefix(b"Exif\0\0")
    late = struct.pack(">I", len(block) - 4) + block + struct.pack(">I", zlib.crc32(block))
    data = path.read_bytes()
    path.write_bytes(data[:-12] + late + data[-12:])
    assert read_size(path) == load_rgb(path).size == (40, 60)


def test_transparency_lies_on_white_in_every_mode(tmp_path):
    rgba = corners().convert("RGBA")
    rgba.putalpha(Image.fromarray(np.tile(np.repeat([0, 255], 30).astype(np.uint8), (40, 1))))
    rgba.save(tmp_path / "rgba.png")
    rgba.convert("LA").save(tmp_path / "la.png")
    rgba.save(tmp_path / "rgba.webp", lossless=True)
    palette = corners().quantize(4)
    palette.info["transparency"] = palette.getpixel((0, 0))
    palette.save(tmp_path / "p.png", transparency=palette.getpixel((0, 0)))
    palette.save(tmp_path / "p.gif", transparency=palette.getpixel((0, 0)))
    corners().save(tmp_path / "keyed.png", transparency=(255, 0, 0))
    for path in tmp_path.iterdir():
        image = load_rgb(path)
        assert image.mode == "RGB"
        assert pixel(image, 2, 2) == [255, 255, 255], path.name


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr"])
def test_modes_become_rgb(tmp_path, mode):
    path = tmp_path / "a.tiff"
    corners().convert(mode).save(path)
    image = load_rgb(path)
    assert image.mode == "RGB" and image.size == (60, 40)
    assert np.abs(np.asarray(image, int)[38, 58] - 255).max() <= 2


def test_cmyk_jpeg_is_not_a_negative(tmp_path):
    corners().convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    image = load_rgb(tmp_path / "a.jpg")
    assert min(pixel(image, 58, 38)) > 245
    assert pixel(image, 2, 2)[0] > 200 > 60 > pixel(image, 2, 2)[1]


def test_cmyk_with_a_broken_profile_falls_back(tmp_path):
    corners().convert("CMYK").save(tmp_path / "a.jpg", icc_profile=b"nonsense", quality=95)
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    corners().convert("CMYK").save(tmp_path / "b.jpg", icc_profile=srgb, quality=95)
    assert min(pixel(load_rgb(tmp_path / "a.jpg"), 58, 38)) > 245
    assert min(pixel(load_rgb(tmp_path / "b.jpg"), 58, 38)) > 245


@pytest.mark.parametrize("name", ["a.png", "a.tiff", "a.pgm"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, name):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).reshape(1, 256).repeat(4, 0)
    Image.fromarray(ramp).save(tmp_path / name)
    values = np.asarray(load_rgb(tmp_path / name))[0, :, 0].astype(int)
    assert values.tolist() == list(range(256))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 0.5, 1]], np.float32), [0, 128, 255]),
        (np.array([[0, 100, 255]], np.float32), [0, 100, 255]),
        (np.array([[0, 32768, 65535]], np.float32), [0, 128, 255]),
        (np.array([[-1, 0, 1]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, 0.5, 1]], np.float32), [0, 128, 255]),
        (np.array([[0, 500_000, 1_000_000]], np.int32), [0, 128, 255]),
        (np.array([[0, 0, 0]], np.int32), [0, 0, 0]),
    ],
)
def test_deeper_greyscale(tmp_path, values, expected):
    Image.fromarray(values).save(tmp_path / "a.tiff")
    assert np.asarray(load_rgb(tmp_path / "a.tiff"))[0, :, 0].tolist() == expected


def test_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for name in ("a.gif", "a.webp", "a.png"):
        extra = {"lossless": True} if name == "a.webp" else {}
        frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **extra)
        assert pixel(load_rgb(tmp_path / name), 4, 4) == [255, 0, 0]


def test_the_content_decides_not_the_extension(tmp_path):
    corners().save(tmp_path / "a.jpg", format="PNG")
    assert load_rgb(tmp_path / "a.jpg").size == (60, 40)


def broken(tmp_path, name, data):
    path = tmp_path / name
    path.write_bytes(data)
    return path


def noise(format):
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(data, format)
    return data.getvalue()


def test_truncated_jpeg_has_a_good_header_and_is_named_on_decoding(tmp_path):
    path = broken(tmp_path, "a.jpg", noise("JPEG")[:-2000])
    assert read_size(path) == (64, 64)
    with pytest.raises(DataError) as error:
        load_rgb(path)
    assert str(error.value) == (
        f"{path}: the picture data is broken or cut off (image file is truncated); expected a file that"
        " decodes to"
        " the end."
    )


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF", "GIF", "BMP", "AVIF", "JPEG2000"])
@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_truncation_is_a_data_error_in_every_format(tmp_path, format, part):
    data = noise(format)
    with pytest.raises(DataError, match=r"a\.img: .+; expected .+\.$"):
        load_rgb(broken(tmp_path, "a.img", data[: int(len(data) * part)]))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "the file is empty (0 bytes); expected a picture."),
        (
            b"<html>not found</html>",
            "the content is not a picture; expected JPEG, PNG, WebP or another format that Pillow opens.",
        ),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
            "the content is not a picture; expected JPEG, PNG, WebP or another format that Pillow opens.",
        ),
    ],
)
@pytest.mark.parametrize("read", [read_size, load_rgb])
def test_what_is_no_picture_is_named(tmp_path, data, sentence, read):
    path = broken(tmp_path, "a.jpg", data)
    with pytest.raises(DataError) as error:
        read(path)
    assert str(error.value) == f"{path}: {sentence}"


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError) as error:
        load_rgb(tmp_path / "a.jpg")
    assert str(error.value) == f"{tmp_path / 'a.jpg'}: the file is not there any more; expected a picture."


def test_a_decompression_bomb_is_named(tmp_path):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 30000, 30000, 8, 0, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    path = broken(tmp_path, "a.png", data)
    with pytest.raises(DataError) as error:
        read_size(path)
    assert str(error.value) == (
        f"{path}: the picture is too large to be opened safely; expected at most 178 megapixels."
    )


def test_pixels_have_the_bucket_shape_and_range():
    pixels = to_pixels(corners(), Bucket(32, 16))
    assert pixels.shape == (3, 16, 32) and pixels.dtype == torch.float32 and pixels.is_contiguous()
    assert pixels.min() == -1 and pixels.max() == 1
    assert pixels[:, 0, 0].tolist() == [1, -1, -1] and pixels[:, -1, -1].tolist() == [1, 1, 1]


def test_same_size_is_left_alone():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 32, 3), np.uint8))
    pixels = to_pixels(image, Bucket(32, 16))
    assert torch.equal(
        ((pixels + 1) * 127.5).round().byte().permute(1, 2, 0), torch.from_numpy(np.array(image))
    )


def test_flips_and_crops():
    plain = to_pixels(corners(), Bucket(48, 32))
    assert torch.equal(to_pixels(corners(), Bucket(48, 32), flip_x=True), plain.flip(-1))
    assert torch.equal(to_pixels(corners(), Bucket(48, 32), flip_y=True), plain.flip(-2))
    assert torch.equal(to_pixels(corners(), Bucket(48, 32), flip_x=True, flip_y=True), plain.flip(-1, -2))
    halves = Image.fromarray(np.repeat(np.array([0, 255], np.uint8), 32)[None].repeat(32, 0)).convert("RGB")
    assert to_pixels(halves, Bucket(16, 16), crop=(0, 0.5)).max() < -0.8
    assert to_pixels(halves, Bucket(16, 16), crop=(1, 0.5)).min() > 0.8
    centre = to_pixels(halves, Bucket(16, 16))
    assert centre[:, :, 0].max() < -0.8 and centre[:, :, -1].min() > 0.8


@pytest.mark.parametrize("size", [(1, 1), (1, 999), (4001, 3), (7, 5)])
def test_odd_sizes_still_fill_their_bucket(size):
    assert to_pixels(Image.new("RGB", size, "white"), Bucket(16, 32)).min() == 1
