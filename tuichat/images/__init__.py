"""The one loader: whatever shows, counts or feeds an image to a model gets it from here.

Owns the checks that a file passes on its way in, decoding, and thumbnails. Refuses to know the
store, the screen and every model. Invariant: an image that ``check_image`` let through decodes to
the same upright, opaque, 8-bit RGB image for everybody, and everything that it refuses is one
``ImageRefused`` sentence that names the file, the reason and the cure. Importing this package
imports no codec: Pillow is loaded with the first image.
"""

from tuichat.images.decode import decode_image, thumbnail
from tuichat.images.loader import LoadedImage, check_image, load_image
from tuichat.images.paste import parse_paths, resolve_pasted

__all__ = [
    "LoadedImage",
    "check_image",
    "decode_image",
    "load_image",
    "parse_paths",
    "resolve_pasted",
    "thumbnail",
]
