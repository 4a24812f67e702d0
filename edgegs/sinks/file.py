"""``file://``: a video, numbered pictures, or one picture that always shows the latest frame.

    file:///data/out.mkv              video: .mkv, .avi or .mp4
    file:///data/frame_%06d.png       numbered pictures: .png or .jpg, one %d or %0Nd in the name
    file:///data/latest.jpg           one picture, replaced by each frame

Nothing is percent-decoded, "~" is not a home folder, and a path without a leading slash is relative to the
working directory. A missing folder is created only when the folder above it exists: a deeper one usually
means that a disk is not mounted, and the recording must not fill the system's disk instead; the runner
tries again until it is there.

What was recorded is never overwritten. An older video of the same name is renamed to the next free
``out.1.mkv``, ``out.2.mkv`` …, and comes back to its name when the new one ends without a frame; numbered
pictures go on after the highest number that is there. Below ``min_free_mb`` of free space writing stops
with an error and the video is finished properly: OpenCV itself does not notice a full disk.

Which video format? A video plays as fast as the frames came: at the nominal rate, a late frame fills
the time before it with copies of itself, and frames beyond that rate are left out (see ``_copies``). An .mp4 holds its
index (the "moov atom") at the end: when the power fails before ``close``, the whole file is lost. An .mkv
or .avi stays readable up to the cut, so an unattended board should record .mkv. OpenCV drops the last row
or column of an odd size. Pictures appear under their name in one step (temporary file, then rename), so
that a reader never sees half of one; they are not fsynced, which would wear an SD card out.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Optional, Tuple

import cv2
import numpy as np

from edgegs.errors import AccessError, ConfigError, OutputError
from edgegs.frame import Frame
from edgegs.sinks.base import Sink, check_int
from edgegs.sinks.pictures import encode
from edgegs.sinks.uri import OutputUri, split_frame_number

#: Each of ``uri.VIDEO_SUFFIXES`` -> codecs to try in turn. All are in OpenCV's wheels; MJPG is in every build.
_CODECS: Dict[str, Tuple[str, ...]] = {
    ".mp4": ("mp4v", "avc1"),
    ".mkv": ("mp4v", "MJPG"),
    ".avi": ("MJPG", "mp4v"),
}
#: How often the disk's free space is looked at, seconds.
_CHECK_S = 1.0


class FileSink(Sink):
    """Common part: folder, permissions and free space.

    Options:
        queue: frames that may wait while the disk is slow, 1..64; each takes width x height x 3 bytes.
        min_free_mb: MiB of the disk that stay free.
        quality: JPEG quality, 1..100; pictures only.
        codec: four characters ("MJPG") instead of the format's own choice; videos only.
    """

    OPTIONS = ("queue", "min_free_mb", "quality", "codec")

    def __init__(self, uri: str, path: str, queue: int = 8, min_free_mb: int = 64) -> None:
        super().__init__(uri)
        self.path = Path(path)
        self.queue = check_int(uri, "queue", queue, 1, 64)
        self._min_free = check_int(uri, "min_free_mb", min_free_mb, 0, 1 << 24) << 20
        self._checked_at = float("-inf")

    @classmethod
    def from_uri(cls, uri: OutputUri, **options: Any) -> Sink:
        if uri.kind == "video":
            if "quality" in options:
                raise ConfigError(f"output {uri}: quality is for pictures only")
            return VideoSink(uri.text, uri.path, **options)
        if "codec" in options:
            raise ConfigError(f"output {uri}: codec is for videos only")
        return (NumberedSink if uri.kind == "frames" else PictureSink)(uri.text, uri.path, **options)

    def _prepare(self) -> None:
        """Make sure that there is a folder to write to, and room; creates what the module's text says."""
        folder = self.path.parent
        with self._os_errors(f"cannot create folder {folder}", "; create it, or mount its disk"):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
        if self.path.is_dir():
            raise OutputError(f"output {self.uri}: {self.path} is a folder; name a file")
        if os.statvfs(str(folder)).f_flag & os.ST_RDONLY:
            raise OutputError(f"output {self.uri}: the disk of {folder} is mounted read-only")
        if not os.access(str(folder), os.W_OK | os.X_OK, effective_ids=True):
            raise AccessError(f"output {self.uri}: this user may not write to {folder}")
        self._checked_at = float("-inf")
        self._check_space()

    def _check_space(self) -> None:
        now = time.monotonic()
        if now - self._checked_at < _CHECK_S:
            return
        self._checked_at = now
        disk = os.statvfs(str(self.path.parent))
        free = disk.f_bavail * disk.f_frsize
        if free < self._min_free:
            raise OutputError(
                f"output {self.uri}: {free >> 20} MiB free on its disk, "
                f"{self._min_free >> 20} MiB must stay free (min_free_mb)"
            )

    @contextlib.contextmanager
    def _os_errors(self, doing: str, advice: str = "") -> Iterator[None]:
        """Turns an OSError into an error of ours with the same cause."""
        try:
            yield
        except OSError as error:
            kind = AccessError if isinstance(error, PermissionError) else OutputError
            why = error.strerror or str(error)
            raise kind(f"output {self.uri}: {doing}: {why}{advice}") from error


#: A longer silence (another scene being loaded) is cut from a video, seconds.
_LONGEST_GAP_S = 2.0


class VideoSink(FileSink):
    """A video through OpenCV's own FFmpeg."""

    def __init__(self, uri: str, path: str, codec: Optional[str] = None, **options: Any) -> None:
        super().__init__(uri, path, **options)
        if codec is not None and not (isinstance(codec, str) and len(codec) == 4 and codec.isascii()):
            raise ConfigError(f"output {uri}: codec is {codec!r}; expected four characters, as MJPG")
        self._codecs = (codec,) if codec else _CODECS[self.path.suffix.lower()]
        self._writer: Optional[Any] = None
        self._older: Optional[Path] = None  # where an older video of this name was moved
        self._frames = 0
        self._fps = 0.0
        self._began_ns = 0  # monotonic time of the first frame, moved on by long gaps

    def open(self, width: int, height: int, fps: float) -> None:
        self._prepare()
        with self._os_errors(f"cannot move the older {self.path} aside"):
            self._older = self._move_aside()
        self._frames = 0
        self._fps = fps
        for codec in self._codecs:
            writer = cv2.VideoWriter(
                str(self.path), int.from_bytes(codec.encode("ascii"), "little"), fps, (width, height)
            )
            if writer.isOpened():
                self._writer = writer
                return
            writer.release()
        self._take_back()
        raise OutputError(
            "output {}: this OpenCV cannot write {} ({} at {}x{}); try .mkv or .avi, or another codec".format(
                self.uri, self.path.suffix, " or ".join(self._codecs), width, height
            )
        )

    def write(self, frame: Frame) -> None:
        if self._writer is None:
            raise OutputError(f"output {self.uri}: not open")
        with self._os_errors(f"cannot write {self.path}"):
            self._check_space()
        if not self.path.exists():
            raise OutputError(f"output {self.uri}: the file is gone (deleted, or its disk removed)")
        for _ in range(self._copies(frame)):
            self._writer.write(frame.image)
            self._frames += 1

    def _copies(self, frame: Frame) -> int:
        """How often this frame must be written so that the video plays in step with the clock.

        A frame that comes up to one slot early still gets a slot of its own: jitter loses nothing. After a gap
        of more than ``_LONGEST_GAP_S`` the video goes on as if there had been none.
        """
        if self._frames == 0:
            self._began_ns = frame.t_mono_ns
        due = round((frame.t_mono_ns - self._began_ns) * 1e-9 * self._fps) + 1
        if due - self._frames > _LONGEST_GAP_S * self._fps:
            self._began_ns = frame.t_mono_ns - int(self._frames / self._fps * 1e9)
            due = self._frames + 1
        return max(due - self._frames, 1 if self._frames <= due else 0)

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.release()
        if self._frames == 0:
            self._take_back()
        elif not (self.path.exists() and self.path.stat().st_size > 0):
            raise OutputError(f"output {self.uri}: {self._frames} frames were lost")

    def _move_aside(self) -> Optional[Path]:
        if not self.path.exists():
            return None
        pattern = re.compile(re.escape(self.path.stem) + r"\.([0-9]+)" + re.escape(self.path.suffix))
        numbers = [int(m.group(1)) for m in map(pattern.fullmatch, os.listdir(str(self.path.parent))) if m]
        older = self.path.with_name(f"{self.path.stem}.{max(numbers, default=0) + 1}{self.path.suffix}")
        os.rename(str(self.path), str(older))
        return older

    def _take_back(self) -> None:
        """Undo an open that led to no frame."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        if self._older is not None:
            os.rename(str(self._older), str(self.path))
            self._older = None


class PictureSink(FileSink):
    """One picture, replaced by each frame in one step."""

    def __init__(self, uri: str, path: str, quality: int = 90, queue: int = 1, **options: Any) -> None:
        super().__init__(uri, path, queue=queue, **options)
        self._quality = check_int(uri, "quality", quality, 1, 100)

    def open(self, width: int, height: int, fps: float) -> None:
        self._prepare()

    def write(self, frame: Frame) -> None:
        self._replace(self.path, frame.image)

    def _replace(self, path: Path, image: np.ndarray) -> None:
        with self._os_errors(f"cannot write {path}"):
            self._check_space()
            temporary = path.with_name(f".{path.name}.part")
            try:
                temporary.write_bytes(encode(image, path.suffix, self._quality))
                os.replace(str(temporary), str(path))
            except OSError:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise


class NumberedSink(PictureSink):
    """Pictures numbered without gaps, in the order in which they were delivered."""

    def __init__(self, uri: str, path: str, queue: int = 8, **options: Any) -> None:
        super().__init__(uri, path, queue=queue, **options)
        self._before, self._digits, self._after = split_frame_number(self.path.name)
        self._next = 0

    def open(self, width: int, height: int, fps: float) -> None:
        super().open(width, height, fps)
        pattern = re.compile(re.escape(self._before) + r"([0-9]+)" + re.escape(self._after))
        numbers = [int(m.group(1)) for m in map(pattern.fullmatch, os.listdir(str(self.path.parent))) if m]
        self._next = max(numbers, default=-1) + 1

    def write(self, frame: Frame) -> None:
        name = "{}{:0{}d}{}".format(self._before, self._next, self._digits, self._after)
        self._replace(self.path.with_name(name), frame.image)
        self._next += 1
